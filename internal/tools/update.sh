#!/usr/bin/env bash
# Moves everything to another release of the collector:
#
#   make update CORE=v0.164.0 STABLE=v1.70.0 CONTRIB=v0.164.1
#
# CORE and STABLE are the two versions of one release of the collector, CONTRIB is
# contrib's. Every module of go.mod, of the developer tools and of the builder
# configurations is tried by itself first: one that the module proxy does not serve
# whole (some releases lack an internal package) keeps its version and is listed.
set -euo pipefail
cd "$(dirname "$0")/../.."
: "${CORE:?set CORE, STABLE and CONTRIB, see internal/tools/update.sh}" "${STABLE:?}" "${CONTRIB:?}"

# Prints the release for a module at its present version.
release() {
	case $1 in
	github.com/open-telemetry/opentelemetry-collector-contrib/*) echo "$CONTRIB" ;;
	*) [[ $2 == v0.* ]] && echo "$CORE" || echo "$STABLE" ;;
	esac
}

# Reports whether a module with all that its packages and their tests import can be
# had: the builder tidies, which needs the tests' modules, too.
served() {
	local dir rc=0
	dir=$(mktemp -d)
	printf 'package try\nimport _ "%s"\n' "$1" >"$dir/try.go"
	(cd "$dir" && go mod init try && go get "$1@$2" && go mod tidy) >"$dir/log" 2>&1 || rc=1
	rm -rf "$dir"
	return $rc
}

# Modules that only others require follow them.
own='go\.opentelemetry\.io/collector[^ ]*|github\.com/open-telemetry/opentelemetry-collector-contrib/[^ ]*'
kept=()
declare -A tried
while read -r module version; do
	to=$(release "$module" "$version")
	[[ $version != "$to" && -z ${tried[$module]:-} ]] || continue
	tried[$module]=1
	if ! served "$module" "$to"; then
		kept+=("$module $version")
		continue
	fi
	echo "$module $version -> $to"
	sed -i "s#$module $version\$#$module $to#" builder-config*.yaml
	for dir in . internal/tools; do
		if grep -q "$module $version" "$dir/go.mod"; then
			(cd "$dir" && go get "$module@$to") || kept+=("$module $version ($dir/go.mod)")
		fi
	done
done < <(grep -hvE '// indirect' go.mod builder-config*.yaml | cat - <(grep -h /cmd/ internal/tools/go.mod) |
	grep -oE "($own) v[0-9][^ ]*" | sort -u)
go mod tidy
(cd internal/tools && go mod tidy)
if ((${#kept[@]})); then
	printf 'kept, since the release is not served whole:\n'
	printf '  %s\n' "${kept[@]}"
fi
echo 'now: make generate lint test'
