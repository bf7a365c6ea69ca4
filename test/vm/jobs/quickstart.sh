# What `make run` does: the distribution on config/quickstart.yaml, with the demo's
# programs beside it, until the profile of the one that turns hot is written.
set -euo pipefail
dir=$(mktemp -d)
# Emulated, sampling costs more of a core than the default permits it, and
# everything takes its time.
sed 's/^  cpu_profiler:$/  cpu_profiler:\n    max_overhead: 50%/; s/idle_timeout: 4s/idle_timeout: 15s/' config/quickstart.yaml >"$dir/config.yaml"
export HOTPROFILE_DIRECTORY=$VM_OUT/quickstart HOTPROFILE_DURATION=15s
rm -rf "$HOTPROFILE_DIRECTORY"
bin/demo -collector bin/otelcol-hotprofile -load bin/load -config "$dir/config.yaml" >"$dir/log" 2>&1 &
demo=$!
has() { [[ $(grep -c -- "$1" "$dir/log") != 0 ]]; }
for _ in $(seq 300); do has 'profile written' && break; sleep 1; done
kill -INT $demo
wait $demo && status=0 || status=$?
grep -E 'sampling started|cgroup mode|gate |profile written|warn|error|demo' "$dir/log" | cut -c1-900
has 'gate opened.*demo-hot' || { echo "FAILED: no gate opened"; exit 1; }
has 'profile written' || { echo "FAILED: no profile"; exit 1; }
[[ $status == 0 ]] || { echo "FAILED: the demo ended with $status"; exit 1; }
ls -la "$HOTPROFILE_DIRECTORY"
