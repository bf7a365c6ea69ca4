# Takes CPU 1 away and brings it back ten times while the built distribution
# samples the whole host and a thread burns on each CPU. Samples must go on, CPU 1
# must be sampled again within discovery_interval each time, and the log must not
# grow a line per tick.
set -euo pipefail
cpu=/sys/devices/system/cpu/cpu1/online
dir=$(mktemp -d)
cat >"$dir/config.yaml" <<END
receivers:
  cpu_profiler: {export_interval: 1s, discovery_interval: 2s, frequency: 97, max_overhead: 50%, thread_attributes: [thread.id]}
exporters:
  debug: {}
service:
  telemetry:
    logs: {encoding: json, sampling: {enabled: false}}
    metrics: {readers: [{pull: {exporter: {prometheus: {host: localhost, port: 8888}}}}]}
  pipelines:
    profiles: {receivers: [cpu_profiler], exporters: [debug]}
END
bin/load -threads 2 &
load=$!
bin/otelcol-hotprofile --config "$dir/config.yaml" >"$dir/log" 2>&1 &
collector=$!
samples() { python3 - <<'END'
import urllib.request
total = 0
for line in urllib.request.urlopen("http://localhost:8888/metrics").read().decode().splitlines():
    if line.startswith("otelcol_cpu_profiler_samples{") and 'outcome="exported"' in line:
        total += float(line.rsplit(" ", 1)[1])
print(int(total))
END
}
# rate is the samples of five seconds, after those of the last state have left.
rate() { sleep 4; local a b; a=$(samples); sleep 5; b=$(samples); echo $((b - a)); }
for _ in $(seq 60); do grep -q 'sampling started' "$dir/log" && break; sleep 1; done
status=0
both=$(rate)
echo "both CPUs: $both samples in 5s"
lines=$(wc -l <"$dir/log")
for n in $(seq 10); do
	echo 0 >$cpu; one=$(rate)
	echo 1 >$cpu; again=$(rate)
	echo "round $n: CPU 1 offline $one samples in 5s, online again $again"
	((one > 200)) || { echo "samples stopped with CPU 1"; status=1; }
	((again > one * 3 / 2)) || { echo "CPU 1 is not sampled again"; status=1; }
done
echo "log lines before $lines, after $(wc -l <"$dir/log"), without the exporter's own:"
tail -n +$((lines + 1)) "$dir/log" | grep -v '"otelcol.component.kind":"exporter"' | cut -c1-300 | head -50 || true
echo "descriptors: $(ls /proc/$collector/fd | wc -l)"
kill -INT $collector; wait $collector || true
kill $load; wait $load 2>/dev/null || true
exit $status
