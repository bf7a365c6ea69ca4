# Runs the packages' own tests in the guest, with a skip for want of a right as a
# failure. Arguments: packages, each with a -test.run pattern after a colon where
# not all are meant; without, all that were compiled. Whole logs go to the
# output folder.
set -uo pipefail
failed=()
packages=("$@")
[[ ${#packages[@]} -gt 0 ]] || mapfile -t packages < <(ls bin/tests | sed 's/\.test$//' | tr _ /)
[[ ! -d /run/systemd/system ]] || systemctl start docker.service
for each in "${packages[@]}"; do
	package=${each%%:*} pattern=.
	[[ $each == *:* ]] && pattern=${each#*:}
	binary=$VM_SRC/bin/tests/${package//\//_}.test
	[[ -x $binary ]] || { echo "no test binary for $package"; failed+=("$package"); continue; }
	log=$VM_OUT/${package//\//_}.log
	started=$SECONDS
	(cd "$VM_SRC/$package" && "$binary" -test.v -test.timeout 25m -test.run "$pattern") >"$log" 2>&1
	status=$?
	printf '== %-60s status %d, %d passed, %d failed, %d skipped, %ds\n' "$package" "$status" \
		"$(grep -ac '^--- PASS' "$log")" "$(grep -ac '^--- FAIL' "$log")" "$(grep -ac '^--- SKIP' "$log")" $((SECONDS - started))
	grep -aE '^ *--- (FAIL|SKIP)|^panic|^fatal' "$log" | head -40
	[[ $status == 0 ]] || failed+=("$package")
done
[[ ${#failed[@]} == 0 ]] || { echo "failed: ${failed[*]}"; exit 1; }
