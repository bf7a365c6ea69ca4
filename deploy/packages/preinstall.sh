#!/bin/sh
# Creates the user before the files are unpacked, because the state directory belongs to it.
set -e
user=otelcol-hotprofile
if command -v useradd >/dev/null; then
	getent group $user >/dev/null || groupadd --system $user
	getent passwd $user >/dev/null ||
		useradd --system --gid $user --home-dir / --no-create-home --shell /usr/sbin/nologin --comment 'hotprofile collector' $user
else # Alpine
	getent group $user >/dev/null || addgroup -S $user
	getent passwd $user >/dev/null || adduser -S -D -H -h / -s /sbin/nologin -G $user -g 'hotprofile collector' $user
fi
