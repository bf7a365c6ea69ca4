#!/usr/bin/env bash
# Moves every module of the collector and of contrib that go.mod, the developer
# tools, builder-config*.yaml and docs/own-collector.md name to the newest version
# that the module proxy serves whole:
#
#   make update                 # or, for an older release: make update CORE=v0.163.0
#
# CORE is the version of go.opentelemetry.io/collector/service, which requires core
# modules of one release, whatever their numbers. No other module may raise them, and
# no core module is newer. A module is served whole if all that its packages and their tests import can
# be downloaded: the builder tidies, which needs the tests' modules, too.
set -euo pipefail
cd "$(dirname "$0")/../.."
export GOFLAGS=-mod=mod GOWORK=off GOTOOLCHAIN=local

core=go.opentelemetry.io/collector
contrib=github.com/open-telemetry/opentelemetry-collector-contrib
own="($core|$contrib)(/[a-z0-9/]+)?"
pinned=(builder-config*.yaml docs/own-collector.md)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Prints the versions of a module, newest first. The list of a few modules is not
# served; those have the numbers of a module that is released with them.
versions() {
	local like
	like=$core/service
	[[ $1 == "$contrib"* ]] && like=$contrib/processor/resourceprocessor
	local list
	list=$(go list -m -versions "$1" 2>/dev/null | cut -s -d' ' -f2-) || true
	: "${list:=$(go list -m -versions "$like" | cut -s -d' ' -f2-)}"
	tr ' ' '\n' <<<"$list" | grep -v -- - | sort -rV
}

# Reports whether the first of two versions is newer.
newer() { [[ $1 != "$2" && $(printf '%s\n' "$1" "$2" | sort -V | tail -1) == "$1" ]]; }

# Prints the highest version of the release's core modules that begins as $1 does.
limit() { grep -oE " ${1%%.*}\..*" "$work/release/core" | tr -d ' ' | sort -V | tail -1; }

# Tries a version of a module beside the release in $work/release, if there is one.
# If it is not served whole, or raises a module of the release, $work/why has the reason.
whole() {
	local dir=$work/try
	rm -rf "$dir" && mkdir "$dir"
	if [[ -d $work/release ]]; then
		cp "$work"/release/* "$dir"
	else
		(cd "$dir" && go mod init try) 2>/dev/null
	fi
	printf 'package try\n\nimport _ "%s"\n' "$1" >"$dir/module.go"
	if ! (
		cd "$dir"
		go mod edit -require="$1@$2"
		go list -m all >all
		if [[ -f core ]]; then
			raised=$(grep -oE "^$own v[^ ]*" all | grep -Ff <(cut -d' ' -f1 core | sed 's/$/ /') | grep -vxFf core | head -1) || true
			[[ -z $raised ]] || { echo "requires $raised" >&2 && exit 1; }
		fi
		go mod tidy
	) >"$work/log" 2>&1; then
		# The reason is a refused download, or else what was said last.
		{ grep -hE 'requires |[0-9]{3} [A-Z]|no such host' "$work/log" || tail -1 "$work/log"; } |
			head -1 | sed -E 's#reading https?://[^ ]*: ##; s/^[[:space:]]*(go: )?//; s/:? *(server response|https fetch|dial tcp).*//' | cut -c1-240 >"$work/why"
		return 1
	fi
}

# The release of the core.
was=$(go list -m -f '{{.Version}}' $core/pdata/pprofile)
for release in ${CORE:-$(versions $core/service)}; do
	whole $core/service "$release" && break
	echo "$core/service $release: $(<"$work/why")"
	release=
done
[[ -n $release ]] || { echo 'no release of the core is served whole' >&2 && exit 1; }
mv "$work/try" "$work/release"
mv "$work/release/module.go" "$work/release/release.go"
grep -oE "^$core[^ ]* v[^ ]*" "$work/release/all" >"$work/release/core"
echo "core: $release"

pins() {
	grep -hv '// indirect' go.mod | grep -oE "$own v[0-9][^ ]*"
	grep -h /cmd/ internal/tools/go.mod | grep -oE "$own v[0-9][^ ]*"
	grep -ohE "$own[ @]v[0-9][^ ]*" "${pinned[@]}" | tr @ ' '
}
moved=() kept=()
while read -r module; do
	present=$(pins | grep "^$module " | cut -d' ' -f2 | sort -V | head -1)
	to=$present refused=()
	for version in $(versions "$module"); do
		newer "$version" "$present" || break
		if [[ $module == $core* ]] && newer "$version" "$(limit "$version")"; then
			continue
		fi
		if whole "$module" "$version"; then
			to=$version
			break
		fi
		refused+=("  not $version: $(<"$work/why")")
	done
	if [[ $to != "$present" ]]; then
		echo "$module $present -> $to"
		moved+=("$module@$to")
		sed -i -E "s#($module[ @])v[0-9][^ ]*#\1$to#" "${pinned[@]}"
	fi
	((${#refused[@]} == 0)) || kept+=("$module $to" "${refused[@]}")
done < <(pins | cut -d' ' -f1 | sort -u)

# Modules that only others require follow them.
follow() {
	local here=() m
	for m in "${moved[@]}"; do
		! grep -E "$1" go.mod | grep -qF "${m%@*} " || here+=("$m")
	done
	((${#here[@]} == 0)) || go get "${here[@]}"
	go mod tidy
}
follow ' v[^ ]*$'
(cd internal/tools && follow /cmd/)

if ((${#kept[@]})); then
	printf '\nNot the newest version, since that is not served whole or needs another core:\n'
	printf '  %s\n' "${kept[@]}"
fi
if ((${#moved[@]})); then
	old=${was#v}
	printf '\nLines of the documentation that name the release before, %s:\n' "${old%.*}"
	git grep -nF "${old%.*}" -- '*.md' ':!CHANGELOG.md' || true
	printf '\nBy hand: go.opentelemetry.io/ebpf-profiler in builder-config.ebpf.yaml.\n'
	echo 'Then: make generate lint build build-kubernetes build-ebpf test'
fi
