# The distribution on config/quickstart.yaml, beside a program that turns hot in a
# cgroup of its own with one CPU, as the demo of `make run` has it; the demo's times
# are too short where everything is emulated. The profile has to hold the program's
# own functions, by name, down to its main.
set -euo pipefail
dir=$(mktemp -d)
# Emulated, sampling costs more of a core than the default permits it.
sed 's/^  cpu_profiler:$/  cpu_profiler:\n    max_overhead: 50%/; s/idle_timeout: 4s/idle_timeout: 20s/' config/quickstart.yaml >"$dir/config.yaml"
export HOTPROFILE_DIRECTORY=$VM_OUT/quickstart HOTPROFILE_CONSOLE_DIRECTORY=$dir/console HOTPROFILE_DURATION=20s HOTPROFILE_COOLDOWN=5s
rm -rf "$HOTPROFILE_DIRECTORY"
fail() { echo "FAILED: $*"; grep -vE 'readings are late' "$dir/log" | tail -20 | cut -c1-400; exit 1; }
await() { # await PATTERN: until a line of the log has it
	for _ in $(seq 60); do [[ $(grep -c -- "$1" "$dir/log") == 0 ]] || return 0; sleep 5; done
	fail "no line with $1"
}
bin/otelcol-hotprofile --config "$dir/config.yaml" >"$dir/log" 2>&1 &
collector=$!
await 'sampling started'
group=/sys/fs/cgroup/demo-hot
mkdir "$group"
echo 100000 >"$group/cpu.max"
(echo "$BASHPID" >"$group/cgroup.procs" && OTEL_SERVICE_NAME=demo-hot exec bin/load) &
load=$!
# Until its names are known: reading those of the kernel and of the program takes
# time too, and the first samples do not wait for it.
for n in $(seq 60); do
	await 'profile written.*demo-hot'
	[[ $(grep -c 'profile written.*burnThreeParts.*demo-hot' "$dir/log") == 0 ]] || break
	((n < 60)) || fail "no profile with names"
	sleep 5
done
kill $load
wait $load || true
kill -INT $collector
wait $collector || fail "the collector ended with $?"
rmdir "$group"
sed 's/"resource": {[^}]*}, //; s/"otelcol[^,]*, //g' "$dir/log" | grep -E 'sampling started|cgroup mode|demo-hot' | cut -c1-500
files=("$HOTPROFILE_DIRECTORY"/demo-hot_*)
for name in main.burnThreeParts main.burnOnePart runtime.goexit; do
	zcat "${files[@]}" | grep -ca "$name" >/dev/null || fail "$name is not in ${files[*]}"
done
