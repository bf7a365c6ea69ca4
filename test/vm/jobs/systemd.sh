# Installs the distribution as deploy/systemd/README.md says, and has it gate a
# service that turns hot: once to a second collector over OTLP by
# config/node.yaml, then to files in the state directory, after a restart, and
# after a kill.
set -euo pipefail
fail() { echo "FAILED: $*"; log | tail -30 | cut -c1-400; journalctl -u peer --no-pager -o cat | tail -5 | cut -c1-400; ls -la /var/tmp/peer; exit 1; }
log() { journalctl -u otelcol-hotprofile --no-pager -o cat | sed 's/"resource": {[^}]*}, //; s/"otelcol[^,]*, //g'; }
# has reads to the end, unlike grep -q: who writes must not fail for a reader that left.
has() { [[ $(grep -c -- "$1") != 0 ]]; }
await() { # await SECONDS PATTERN [SINCE]: until a line of the log has it
	for _ in $(seq "$1"); do has "$2" < <(log | tail -n +"${3:-1}") && return; sleep 1; done
	fail "no line with $2 within $1s"
}
install -m 755 bin/otelcol-hotprofile bin/load /usr/local/bin/
install -m 644 deploy/systemd/otelcol-hotprofile.service /etc/systemd/system/
install -D -m 644 deploy/systemd/otelcol-hotprofile.sysusers /etc/sysusers.d/otelcol-hotprofile.conf
systemd-sysusers
install -d /etc/otelcol-hotprofile
# Beforehand, so that it is older than the gate's min_age.
systemd-run -q --unit=checkout -p CPUQuota=50% /usr/local/bin/load
install -m 600 deploy/systemd/environment /etc/otelcol-hotprofile/environment
cat >>/etc/otelcol-hotprofile/environment <<END
HOTPROFILE_DURATION=10s
END
# Emulated, sampling costs more of a core than the default permits it.
sed 's/^  cpu_profiler:$/  cpu_profiler: {max_overhead: 50%}/' config/node.yaml >/etc/otelcol-hotprofile/config.yaml
systemctl daemon-reload
echo "== verify"; systemd-analyze verify /etc/systemd/system/otelcol-hotprofile.service
echo "== security"; systemd-analyze security --no-pager otelcol-hotprofile.service | sed 's/\x1b\[[0-9;]*m//g' | grep -vE '^✓' || true

mkdir -p /var/tmp/peer
cat >/var/tmp/peer/config.yaml <<END
receivers: {otlp: {protocols: {grpc: {endpoint: "localhost:4317"}}}}
exporters: {file: {path: /var/tmp/peer/profiles.json, flush_interval: 200ms}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {profiles: {receivers: [otlp], exporters: [file]}}
END
systemd-run -q --unit=peer /usr/local/bin/otelcol-hotprofile --config /var/tmp/peer/config.yaml

echo "== as Debian sets kernel.perf_event_paranoid: $(cat /proc/sys/kernel/perf_event_paranoid)"
systemctl start otelcol-hotprofile
await 180 'sampling started\|nothing can be sampled'
log | grep 'sampling started\|nothing can be sampled' | cut -c1-500
systemctl stop otelcol-hotprofile
seen=$(log | wc -l)
install -m 644 deploy/systemd/90-otelcol-hotprofile.conf /etc/sysctl.d/
sysctl -q --system
echo "== kernel.perf_event_paranoid: $(cat /proc/sys/kernel/perf_event_paranoid)"
systemctl start otelcol-hotprofile
await 180 'sampling started' "$((seen + 1))"
log | tail -n "+$((seen + 1))" | grep 'sampling started' | cut -c1-500
log | tail -n "+$((seen + 1))" | grep 'sampling started' | grep -q '"not_sampled": \[\], "not_shown": \[\]' || fail "something is not sampled or not shown"
pid=$(systemctl show -P MainPID otelcol-hotprofile)
grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):' "/proc/$pid/status"

echo "== a hot service, config/node.yaml to OTLP"
await 300 'gate opened'
log | grep 'gate opened' | head -1 | cut -c1-500
await 180 'gate closed'
log | grep 'gate closed' | head -1 | cut -c1-300
for _ in $(seq 180); do grep -q burnThreeParts /var/tmp/peer/profiles.json && break; sleep 1; done
grep -q burnThreeParts /var/tmp/peer/profiles.json || fail "the names of the hot service did not arrive"
grep -q '"checkout"' /var/tmp/peer/profiles.json || fail "the service's name did not arrive"

echo "== the same to files, after a restart"
python3 - <<'END'
text = open("/etc/otelcol-hotprofile/config.yaml").read()
text = text.replace("exporters:\n  otlp_grpc:", "exporters:\n  pprof:\n  otlp_grpc:").replace("exporters: [otlp_grpc]", "exporters: [otlp_grpc, pprof]")
open("/etc/otelcol-hotprofile/config.yaml", "w").write(text)
END
seen=$(log | wc -l)
systemctl restart otelcol-hotprofile
await 300 'profile written' "$((seen + 1))"
log | grep 'profile written' | head -2 | cut -c1-500
ls -la /var/lib/otelcol-hotprofile/
zcat /var/lib/otelcol-hotprofile/*.pb.gz | has burnThreeParts || fail "the names of the hot service are not in the files"

echo "== after a kill"
seen=$(log | wc -l)
systemctl kill -s KILL otelcol-hotprofile
await 180 'sampling started' "$((seen + 1))"
systemctl show -P NRestarts -P MemoryCurrent otelcol-hotprofile
echo "== stop"
time systemctl stop otelcol-hotprofile
ended="$(systemctl show -P Result otelcol-hotprofile) $(systemctl show -P ExecMainStatus otelcol-hotprofile)"
[[ $ended == "success 0" ]] || fail "stopping ended with $ended"
log | grep -iE '"level":"(warn|error)"|	(warn|error)	' | cut -c1-300 | sort | uniq -c | head -20 || true
