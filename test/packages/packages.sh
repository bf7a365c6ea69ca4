#!/usr/bin/env bash
# Installs, runs, upgrades and removes the packages that `make packages` wrote, in a Debian
# that debootstrap makes below a temporary directory. `make packages-test` runs it.
# HOTPROFILE_DEBIAN names a directory with such a Debian, which is copied in place of that.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() { echo "skipped: $*"; [[ -n ${HOTPROFILE_REQUIRE_PRIVILEGED:-} ]] && exit 1; exit 0; }
((EUID == 0)) || skip "it needs root for chroot, mounts and the unit's capabilities"
for tool in debootstrap rpm unshare setpriv ip python3; do
	command -v $tool >/dev/null || skip "it needs $tool (Debian: debootstrap, rpm, util-linux, iproute2, python3)"
done
# In a mount namespace of its own, no mount outlives the test.
[[ -n ${in_namespace:-} ]] || in_namespace=1 exec unshare --mount --propagation private "$0"

name=otelcol-hotprofile
machine=$(dpkg --print-architecture)
case $machine in
amd64) other=arm64 rpm_machine=x86_64 ;;
arm64) other=amd64 rpm_machine=aarch64 ;;
*) skip "there are no packages for $machine" ;;
esac
deb=dist/${name}_$VERSION-1_$machine.deb
rpm=dist/$name-$VERSION-1.$rpm_machine.rpm
apk=dist/${name}_$VERSION-r1_$rpm_machine.apk

tmp=$(mktemp -d)
root=$tmp/root
groups=()
collector= load=
cleanup() {
	[[ -z $load ]] || kill "$load" 2>/dev/null || true
	[[ -z $collector ]] || kill "$collector" 2>/dev/null || true
	wait
	for group in "${groups[@]}"; do rmdir "$group" || true; done
	awk -v root="$root/" 'index($2, root) == 1 {print $2}' /proc/self/mounts | tac | xargs -r umount -l
	rm -rf --one-file-system "$tmp"
}
trap cleanup EXIT

checks=0
# check WHAT COMMAND… counts a check and ends the test if the command fails.
check() {
	local what=$1
	shift
	if ! "$@" >"$tmp/check.log" 2>&1; then
		echo "FAILED $what: $*"
		cat "$tmp/check.log"
		[[ ! -s $tmp/log ]] || { echo "the collector's log:" && tail -n 20 "$tmp/log" | cut -c1-600; }
		exit 1
	fi
	checks=$((checks + 1))
	echo "ok $checks $what"
}
equals() { [[ $1 == "$2" ]] || { printf 'got:    %s\nwanted: %s\n' "$1" "$2" && false; }; }
in_root() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
attributes() { in_root stat -c '%a %U:%G' "$1"; }
absent() { [[ ! -e $1 && ! -L $1 ]]; }
await() { # await SECONDS COMMAND…
	for _ in $(seq "$1"); do "${@:2}" && return; sleep 1; done
	false
}

echo "== made twice from other copies, the packages have the same bytes"
mkdir -p "$tmp/bin" "$tmp/dist"
cp bin/nfpm bin/$name.8.gz "$tmp/bin"
# make_package FORMAT ARCH VERSION writes it to $tmp/dist. Copies have other times and modes.
make_package() {
	[[ -d $tmp/dist/$2 ]] || (umask 077 && cp -r dist/${name}_"${VERSION}"_linux_"$2" "$tmp/dist/$2")
	(cd "$tmp/dist/$2" && umask 077 && chmod 755 deploy/packages/preinstall.sh && touch -d "@$EPOCH" deploy/packages/preinstall.sh && ARCH=$2 VERSION=$3 SOURCE_DATE_EPOCH=$EPOCH \
		"$tmp/bin/nfpm" package -f deploy/packages/nfpm.yaml -p "$1" -t .. >/dev/null)
}
for format in deb rpm apk; do
	for arch in "$machine" "$other"; do make_package $format "$arch" "$VERSION"; done
done
for package in dist/*.{deb,rpm,apk}; do check "$package" cmp "$package" "$tmp/$package"; done
echo "== packages of the version 0.0.9, with another configuration"
for format in deb rpm; do
	grep -q lower "$tmp/dist/$machine/config/node-files.yaml" || echo '# The lower version.' >>"$tmp/dist/$machine/config/node-files.yaml"
	make_package $format "$machine" 0.0.9
done

echo "== a Debian"
if [[ -n ${HOTPROFILE_DEBIAN:-} ]]; then
	cp -a "$HOTPROFILE_DEBIAN" "$root"
else
	debootstrap --variant=minbase bookworm "$root" >"$tmp/debootstrap.log" 2>&1 ||
		{ tail -n 3 "$tmp/debootstrap.log" && skip "debootstrap failed: is the mirror of Debian reachable?"; }
fi
mount --bind /proc "$root/proc"
# The test must not change the kernel's settings.
mount --bind /proc/sys "$root/proc/sys" && mount -o remount,ro,bind "$root/proc/sys"
mount --rbind /sys "$root/sys"
echo 127.0.0.1 localhost >"$root/etc/hosts"
mkdir "$root/packages"
cp dist/*.{deb,rpm,apk} "$tmp"/dist/*0.0.9* "$root/packages"

# start runs the unit's ExecStart, under the unit's user and rights. Its log is $tmp/log.
unit_file=
unit() { sed -n "s/^$1=//p" "$unit_file"; }
caps() { tr ' ' '\n' <<<"$1" | sed 's/CAP_/+/' | tr 'A-Z\n' 'a-z,' | sed 's/,$//; s/^/-all,/'; }
start() {
	local user command directory
	user=$(unit User)
	directory=$(unit WorkingDirectory)
	read -ra command <<<"$(unit ExecStart)"
	in_root install -d -m 755 -o "$user" -g "$(unit Group)" "/run/$(unit RuntimeDirectory)"
	(
		ulimit -n "$(unit LimitNOFILE)" || ulimit -n "$(ulimit -Hn)" # without CAP_SYS_RESOURCE
		umask "$(unit UMask)"
		# In a network of its own: another collector may have the port of the metrics.
		exec unshare --net sh -c 'ip link set lo up && exec "$@"' sh chroot "$root" env -i --chdir="$directory" PATH=/usr/local/bin:/usr/bin:/bin STATE_DIRECTORY="$directory" "$(unit Environment)" \
			setpriv --reuid "$user" --regid "$(unit Group)" --clear-groups --no-new-privs --inh-caps "$(caps "$(unit AmbientCapabilities)")" \
			--ambient-caps "$(caps "$(unit AmbientCapabilities)")" --bounding-set "$(caps "$(unit CapabilityBoundingSet)")" "${command[@]}"
	) >"$tmp/log" 2>&1 &
	collector=$!
	check "the collector samples" await 60 grep -q 'sampling started' "$tmp/log"
	check "it lacks no right" grep -q '"not_sampled": \[\], "not_shown": \[\]' "$tmp/log"
	check "it runs as $user" equals "$(awk '$1 == "Uid:" {print $2}' /proc/$collector/status)" "$(in_root id -u "$user")"
	check "it has the unit's capabilities and no others" equals \
		"$(awk '$1 == "CapBnd:" || $1 == "CapEff:" || $1 == "NoNewPrivs:" {print $2}' /proc/$collector/status | xargs)" "0000004400080004 0000004400080004 1"
}
stop() {
	kill "$collector"
	check "the collector ends without an error" wait "$collector"
	collector=
}

hot() { # runs a program that uses all of its quota, in a cgroup of its own
	local at
	if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
		groups=(/sys/fs/cgroup/hotprofile-packages-$$)
	else
		for at in cpu cpuacct cpu,cpuacct memory unified systemd; do
			[[ ! -d /sys/fs/cgroup/$at || -L /sys/fs/cgroup/$at ]] || groups+=("/sys/fs/cgroup/$at/hotprofile-packages-$$")
		done
	fi
	mkdir "${groups[@]}"
	for at in "${groups[@]}"; do
		[[ ! -e $at/cpu.max ]] || echo 20000 100000 >"$at/cpu.max"
		[[ ! -e $at/cpu.cfs_quota_us ]] || echo 20000 >"$at/cpu.cfs_quota_us"
	done
	(for at in "${groups[@]}"; do echo $BASHPID >"$at/cgroup.procs"; done && exec bin/load) >/dev/null 2>&1 &
	load=$!
}
hot # Early, so that it is older than a gate's min_age.

echo "== deb: install"
check "the lower version installs" in_root dpkg -i "/packages/${name}_0.0.9-1_$machine.deb"
check "its configuration is its own" grep -q 'The lower version' "$root/etc/$name/config.yaml"
check "its files are whole" in_root dpkg --verify $name
check "conffiles" equals "$(in_root dpkg-query -W -f '${Conffiles}' $name | awk '{print $1}' | sort | xargs)" \
	"/etc/$name/config.yaml /etc/$name/environment /etc/sysctl.d/90-$name.conf"
check "mode of the program" equals "$(attributes /usr/bin/$name)" "755 root:root"
check "mode of the configuration" equals "$(attributes /etc/$name/config.yaml)" "644 root:root"
check "mode of the environment" equals "$(attributes /etc/$name/environment)" "600 root:root"
check "mode and owner of the state directory" equals "$(attributes /var/lib/$name)" "750 $name:$name"
check "the user has no shell" equals "$(in_root getent passwd $name | cut -d: -f5-)" "hotprofile collector:/:/usr/sbin/nologin"
unit_file=$root/usr/lib/systemd/system/$name.service
check "the unit is the repository's" cmp "$unit_file" deploy/systemd/$name.service
check "the unit is enabled" test -L "$root/etc/systemd/system/multi-user.target.wants/$name.service"
if command -v systemd-analyze >/dev/null; then
	check "systemd accepts the unit" systemd-analyze verify --man=no --recursive-errors=no --root="$root" $name.service
fi
check "the manual is readable" gunzip -t "$root/usr/share/man/man8/$name.8.gz"
check "the licence" cmp "$root/usr/share/doc/$name/copyright" LICENSE
for licence in LICENSE-SQLITE ebpf-profiler; do
	check "licences name $licence" grep -q "$licence" "$root/usr/share/licenses/$name/THIRD_PARTY_LICENSES.txt"
done
check "the program has no GPL-2.0 program for the kernel" bash -c "! grep -q perf_progs '$root/usr/bin/$name'"
for file in "$root/usr/share/doc/$name"/config/*.yaml; do
	check "$(basename "$file") is valid" in_root HOTPROFILE_OTLP_ENDPOINT=localhost:4317 $name validate --config "/usr/share/doc/$name/config/$(basename "$file")"
done

echo "== deb: run"
start
check "a gate opens for the hot program" await 120 grep -q "gate opened.*hotprofile-packages-$$" "$tmp/log"
check "a file is written" await 90 grep -q "profile written.*hotprofile-packages-$$" "$tmp/log"
profile=$(find "$root/var/lib/$name/profiles" -name '*hotprofile-packages*.pb.gz' | head -n 1)
check "it belongs to the user" equals "$(in_root stat -c '%U' "${profile#"$root"}")" $name
check "it has the program's function" grep -q main.burnThreeParts <(go tool pprof -top "$profile" 2>/dev/null)
stop
kill $load
wait $load || true
load=

echo "== deb: upgrade with an edited configuration"
sed -i 's/HOTPROFILE_DIRECTORY:-profiles/HOTPROFILE_DIRECTORY:-mine/' "$root/etc/$name/config.yaml"
echo HOTPROFILE_COOLDOWN=1h >>"$root/etc/$name/environment"
echo 4 >"$tmp/paranoid"
mount --bind "$tmp/paranoid" "$root/proc/sys/kernel/perf_event_paranoid"
check "this version installs" in_root dpkg -i --force-confdef --force-confold "/packages/$(basename "$deb")"
check "Debian's kernel setting is lowered" equals "$(cat "$tmp/paranoid")" 2
echo 1 >"$tmp/paranoid"
check "it installs again" in_root dpkg -i "/packages/$(basename "$deb")"
check "a lower kernel setting is kept" equals "$(cat "$tmp/paranoid")" 1
umount "$root/proc/sys/kernel/perf_event_paranoid"
check "the program is this version" equals "$(in_root $name --version)" "$name version $VERSION"
check "the configuration is kept" grep -q 'HOTPROFILE_DIRECTORY:-mine' "$root/etc/$name/config.yaml"
check "the new one lies beside it" cmp "$root/etc/$name/config.yaml.dpkg-dist" config/node-files.yaml
check "the environment is kept" grep -q '^HOTPROFILE_COOLDOWN=1h' "$root/etc/$name/environment"
check "profiles are kept" test -s "$profile"
start
check "it uses the edited configuration" await 30 test -d "$root/var/lib/$name/mine"
stop

echo "== deb: remove and purge"
check "it is removed" in_root dpkg -r $name
check "without the program" absent "$root/usr/bin/$name"
check "with the configuration" test -s "$root/etc/$name/config.yaml"
check "with the profiles" test -s "$profile"
check "it is purged" in_root dpkg -P $name
for file in /etc/$name /var/lib/$name /etc/sysctl.d/90-$name.conf /etc/systemd/system/multi-user.target.wants/$name.service /usr/share/doc/$name; do
	check "without $file" absent "$root$file"
done
in_root userdel $name

echo "== rpm"
# Debian knows no package that has useradd, and its rpm wants to be told.
in_rpm() { rpm --root "$root" --nodeps --force-debian "$@"; }
check "digests" rpm -K --nosignature "$rpm"
check "configurations" equals "$(rpm -qpc "$rpm" | xargs)" "/etc/$name/config.yaml /etc/$name/environment"
check "configurations are not replaced" equals "$(rpm -qp --qf '[%{FILENAMES} %{FILEFLAGS:fflags}\n]' "$rpm" | awk '$2 ~ /c/ {print $2}' | xargs)" "cn cn"
check "owners" equals "$(rpm -qp --qf '[%{FILEUSERNAME}:%{FILEGROUPNAME} %{FILENAMES}\n]' "$rpm" | grep -v '^root:root ')" "$name:$name /var/lib/$name"
check "the lower version installs" in_rpm -i "$tmp/dist/$name-0.0.9-1.$rpm_machine.rpm"
check "its files are whole" in_rpm -V $name
check "mode and owner of the state directory" equals "$(attributes /var/lib/$name)" "750 $name:$name"
check "mode of the environment" equals "$(attributes /etc/$name/environment)" "600 root:root"
echo '# edited' >>"$root/etc/$name/config.yaml"
check "this version upgrades it" in_rpm -U "$rpm"
check "the program is this version" equals "$(in_root $name --version)" "$name version $VERSION"
check "the configuration is kept" grep -q '# edited' "$root/etc/$name/config.yaml"
check "the new one lies beside it" cmp "$root/etc/$name/config.yaml.rpmnew" config/node-files.yaml
start
stop
check "it is erased" in_rpm -e $name
for file in /usr/bin/$name /usr/lib/systemd/system/$name.service /usr/share/licenses/$name /usr/share/doc/$name; do
	check "without $file" absent "$root$file"
done
check "the edited configuration is saved" grep -q '# edited' "$root/etc/$name/config.yaml.rpmsave"

echo "== apk, by its hashes and a run: Debian has no apk"
# read_apk FILE DIRECTORY checks the hashes and unpacks the files.
read_apk() {
	python3 - "$@" <<'END'
import hashlib, io, sys, tarfile, zlib
rest, parts = open(sys.argv[1], "rb").read(), []
while rest:  # the control part, then the data
    part = zlib.decompressobj(31)
    text = part.decompress(rest)
    parts.append((rest[: len(rest) - len(part.unused_data)], text))
    rest = part.unused_data
assert len(parts) == 2, f"{len(parts)} parts"
with tarfile.open(fileobj=io.BytesIO(parts[0][1])) as tar:
    info = tar.extractfile(".PKGINFO").read().decode()
    assert ".pre-install" in tar.getnames(), tar.getnames()
assert f"datahash = {hashlib.sha256(parts[1][0]).hexdigest()}\n" in info, info
files = 0
with tarfile.open(fileobj=io.BytesIO(parts[1][1])) as tar:
    for member in tar:
        if member.isfile():
            files += 1
            want = member.pax_headers["APK-TOOLS.checksum.SHA1"]
            assert hashlib.sha1(tar.extractfile(member).read()).hexdigest() == want, member.name
        print(f"{member.mode & 0o7777:o} {member.uname}:{member.gname} {member.name}")
    tar.extractall(sys.argv[2])
assert files > 10, files
print(info)
END
}
check "hashes" read_apk "$apk" "$root/apk"
cp "$tmp/check.log" "$tmp/apk.log"
check "version" grep -qx "pkgver = $VERSION-r1" "$tmp/apk.log"
check "owner of the state directory" grep -qE "^750 $name:$name /?var/lib/$name/?$" "$tmp/apk.log"
check "the service" grep -qE "^755 root:root /?etc/init.d/$name$" "$tmp/apk.log"
check "no unit of systemd" bash -c "! grep -q systemd/system '$tmp/apk.log'"
check "the program runs" equals "$(in_root /apk/usr/bin/$name --version)" "$name version $VERSION"
check "the service is a shell script" sh -n "$root/apk/etc/init.d/$name"

echo "== $other"
names() { sed 's#^\./##; s#^/##; s#/$##' | grep . | sort; }
of_deb() { dpkg-deb --fsys-tarfile "$1" | tar -tf - | names; }
check "the deb has the same files" equals "$(of_deb dist/${name}_"$VERSION"-1_$other.deb)" "$(of_deb "$deb")"
check "the deb is for $other" equals "$(dpkg-deb -f dist/${name}_"$VERSION"-1_$other.deb Architecture)" $other
other_rpm=$(ls dist/*.rpm | grep -v "$rpm_machine")
other_apk=$(ls dist/*.apk | grep -v "$rpm_machine")
check "the rpm has the same files" equals "$(rpm -qpl "$other_rpm")" "$(rpm -qpl "$rpm")"
check "hashes of the apk" read_apk "$other_apk" "$tmp/other"
check "the apk has the same files" equals "$(cd "$tmp/other" && find . | sort)" "$(cd "$root/apk" && find . | sort)"
# e_machine of ELF: 62 is x86-64, 183 is AArch64.
check "the program is for $other" equals "$(od -An -tu2 -j18 -N2 "$tmp/other/usr/bin/$name" | tr -d ' ')" "$([[ $other == arm64 ]] && echo 183 || echo 62)"

echo "$checks checks passed"
