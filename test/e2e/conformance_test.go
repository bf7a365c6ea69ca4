// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/test/conformancetest"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// tap is an OTLP server that keeps the bodies of requests
// over gRPC and HTTP. It does not decode the bodies.
type tap struct {
	grpcPort, httpPort int

	mu     sync.Mutex
	bodies map[string][][]byte // the keys are "gRPC" and "HTTP"
	// faults describes the requests that were not compressed with
	// gzip, were sent to a wrong path, or could not be read.
	faults []string
}

// exportMethod is the gRPC method that exporters of profiles call.
const exportMethod = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"

func startTap(t testing.TB) *tap {
	x := &tap{bodies: map[string][][]byte{}}
	overGRPC, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer(grpc.ForceServerCodecV2(conformancetest.AsIs{}), grpc.UnknownServiceHandler(x.export), grpc.StatsHandler(encodings{x}), grpc.MaxRecvMsgSize(16<<20))
	go func() { _ = s.Serve(overGRPC) }()
	t.Cleanup(s.Stop)
	overHTTP, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h := &http.Server{Handler: http.HandlerFunc(x.post)}
	go func() { _ = h.Serve(overHTTP) }()
	t.Cleanup(func() { _ = h.Close() })
	x.grpcPort, x.httpPort = overGRPC.Addr().(*net.TCPAddr).Port, overHTTP.Addr().(*net.TCPAddr).Port
	return x
}

func (x *tap) keep(over string, body []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.bodies[over] = append(x.bodies[over], body)
}

func (x *tap) fault(format string, args ...any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.faults = append(x.faults, fmt.Sprintf(format, args...))
}

// received returns the request bodies that have arrived so far over a protocol.
func (x *tap) received(over string) [][]byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.bodies[over])
}

func (x *tap) export(_ any, stream grpc.ServerStream) error {
	if method, _ := grpc.MethodFromServerStream(stream); method != exportMethod {
		x.fault("gRPC: called %s", method)
	}
	var body []byte
	if err := stream.RecvMsg(&body); err != nil {
		return err
	}
	x.keep("gRPC", body)
	return stream.SendMsg(&[]byte{})
}

func (x *tap) post(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/v1development/profiles" || r.Header.Get("Content-Encoding") != "gzip" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		x.fault("HTTP: %s with %v", r.URL, r.Header)
	}
	z, err := gzip.NewReader(r.Body)
	if err == nil {
		var body []byte
		if body, err = io.ReadAll(z); err == nil {
			x.keep("HTTP", body)
		}
	}
	if err != nil {
		x.fault("HTTP: %v", err)
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// encodings records a fault for each gRPC call that is not compressed with gzip.
type encodings struct{ to *tap }

func (encodings) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (encodings) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (encodings) HandleConn(context.Context, stats.ConnStats)                       {}

func (e encodings) HandleRPC(_ context.Context, s stats.RPCStats) {
	if h, ok := s.(*stats.InHeader); ok && h.Compression != "gzip" {
		e.to.fault("gRPC: compressed with %q", h.Compression)
	}
}

// decoded returns the profiles of a request. It decodes the request in the same way as a
// receiver of the newest release.
func decoded(t testing.TB, body []byte) pprofile.Profiles {
	t.Helper()
	r := pprofileotlp.NewExportRequest()
	require.NoError(t, r.UnmarshalProto(body))
	return r.Profiles()
}

// checkBodies checks all rules on the bodies that arrived. It logs the number of bodies
// and the size of the largest body.
func checkBodies(t *testing.T, over string, bodies [][]byte, opts conformancetest.Options) {
	t.Helper()
	largest := 0
	for i, body := range bodies {
		largest = max(largest, len(body))
		for _, v := range conformancetest.CheckRequest(body, opts) {
			t.Errorf("%s, request %d on the wire: %v", over, i, v)
		}
	}
	t.Logf("%s: %d requests, the largest of %d bytes", over, len(bodies), largest)
	require.NotEmpty(t, bodies, over)
}

// kindsOf counts the events of each kind of profile. A kind consists of
// the sample type and the period type, each with its unit.
func kindsOf(p pprofile.Profiles) map[string]int {
	d := p.Dictionary()
	name := func(v pprofile.ValueType) string {
		return d.StringTable().At(int(v.TypeStrindex())) + "/" + d.StringTable().At(int(v.UnitStrindex()))
	}
	kinds := map[string]int{}
	for _, rp := range p.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			for _, f := range sp.Profiles().All() {
				kind := name(f.SampleType()) + " by " + name(f.PeriodType())
				for _, how := range []string{"unscaled", "spread"} {
					if _, sent := attributes(d, f.AttributeIndices())["hotprofile."+how]; sent {
						kind += ", " + how
					}
				}
				for _, s := range f.Samples().All() {
					kinds[kind] += max(s.TimestampsUnixNano().Len(), 1)
				}
			}
		}
	}
	return kinds
}

// eventsIn returns the number of events in all bodies.
func eventsIn(t testing.TB, bodies [][]byte) (n int) {
	t.Helper()
	for _, b := range bodies {
		for _, events := range kindsOf(decoded(t, b)) {
			n += events
		}
	}
	return n
}

// otlpSettings are the exporters' settings from
// config/node.yaml, with longer timeouts for busy machines.
const otlpSettings = `
    timeout: 1m
    compression: gzip
    middlewares: [{id: inline_attributes}]
    retry_on_failure: {enabled: true, max_elapsed_time: 5m}
    sending_queue:
      enabled: true
      sizer: bytes
      queue_size: 64000000
      batch: {sizer: bytes, flush_timeout: 1s, min_size: 500000, max_size: 3000000}
`

// TestEverySamplersRequestsKeepEveryRule runs all samplers in a hot cgroup,
// beginning before the gate opens. It checks the bytes that the collector sends
// over gRPC, over HTTP, and over gRPC from a queue on disk.
func TestEverySamplersRequestsKeepEveryRule(t *testing.T) {
	t.Parallel()
	if err := perfevent.Probe().Kernel; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	skipWithoutProbes(t)
	hot := newCgroup(t, "hot")
	hot.SetQuota(t, cores)
	hot.RaiseWeight(t)
	program, sender, service := buildAllocating(t), buildSender(t), buildPprofService(t)
	listen := freePort(t)
	dir, err := os.MkdirTemp("", "hp")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	socket := filepath.Join(dir, "dotnet.sock")
	x, queued := startTap(t), startTap(t)
	c := startCollector(t, "collector", fmt.Sprintf(`
extensions:
  file_storage: {directory: %q}
  inline_attributes:
receivers:
  cpu_profiler:
    targets: [{cgroup: %s}] # no probes in programs of others
    discovery_interval: 1s
    export_interval: 1s
    max_overhead: 0
    cpu: {}
    off_cpu: {when: always}
    allocations: {when: always, max_samples_per_minute: 0}
    dotnet: {transport: unix, endpoint: %q}
    pprof_endpoints:
      - endpoint: "http://localhost:%d/debug/pprof"
        target: {executable: %q}
        when: always
        profiles: [profile, allocs, heap, goroutine, threadcreate, block, mutex]
        keep_sampled: true
        interval: 3s
        duration: 2s
processors:
  cpu_trigger:
    evaluation_interval: 1s
    min_age: 0
    pre_trigger: 10s
    policies:
      - name: cpu
        match: {cgroup: %q}
        any_of: [{monitor: cpu_utilization, threshold: 60, average_over: 5s}]
        duration: 12s
        cooldown: 1h
exporters:
  otlp_grpc:
    endpoint: "127.0.0.1:%d"
    tls: {insecure: true}%s
  otlp_http:
    endpoint: "http://127.0.0.1:%d"%s
  otlp_grpc/queued:
    endpoint: "127.0.0.1:%d"
    tls: {insecure: true}%s
      storage: file_storage
service:
  extensions: [file_storage, inline_attributes]
  telemetry: {logs: {encoding: json, level: debug, sampling: {enabled: false}}, metrics: {level: none}}
  pipelines:
    profiles: {receivers: [cpu_profiler], processors: [cpu_trigger], exporters: [otlp_grpc, otlp_http, otlp_grpc/queued]}
`, dir, hot.Path, socket, listen, service, hot.Path, x.grpcPort, otlpSettings, x.httpPort, otlpSettings, queued.grpcPort, strings.TrimRight(otlpSettings, "\n"))) // storage is a key of sending_queue
	c.wait(startTimeout, "Everything is ready. Begin running and processing data.", nil)
	start := func(cmd *exec.Cmd) { startLoad(t, cmd, hotService) }
	start(hot.Command(program, "-idle", "8s", "-busy", "1h"))
	c.wait(startTimeout, "allocations of a program are sampled", nil)
	start(hot.Command(loadBinary, "-waiting", "2", "-kernel-threads", "1"))
	start(hot.Command(service, "-listen", fmt.Sprintf("127.0.0.1:%d", listen), "-duty", "0.5"))
	const recorded = "../../testdata/dotnet/"
	start(hot.Command(sender, "-socket", socket, "-rate", "4", "-for", "3m", "-compression", "gzip",
		"-resource", "service.name="+hotService+",telemetry.sdk.language=dotnet",
		recorded+"web", recorded+"allocations", recorded+"selected", recorded+"names"))

	c.wait(90*time.Second, "gate opened", of(hot.Path))
	c.wait(90*time.Second, "gate closed", of(hot.Path))
	c.stop() // the exporters flush their queues first
	require.Empty(t, x.faults)
	require.Empty(t, queued.faults)

	opts := conformancetest.Options{Triggered: true, Split: true, Now: time.Now()}
	for over, bodies := range map[string][][]byte{"gRPC": x.received("gRPC"), "HTTP": x.received("HTTP"), "gRPC from a queue on disk": queued.received("gRPC")} {
		checkBodies(t, over, bodies, opts)
		kinds := map[string]int{}
		before := 0
		for _, b := range bodies {
			p := decoded(t, b)
			for k, n := range kindsOf(p) {
				kinds[k] += n
			}
			for _, f := range flatten([]pprofile.Profiles{p}) {
				require.Equal(t, hotService, f.service(), "%s, %s from %v to %v: %+v", over, f.sampleType, f.start, f.end, f.samples)
				if f.str("hotprofile.trigger.phase") == "before" {
					before++
				}
			}
		}
		t.Logf("%s: %v; %d profiles from before the gate opened", over, kinds, before)
		require.Positive(t, before, "%s: nothing of the flight recorder", over)
		// This list contains each kind of profile that a sampler makes.
		for _, want := range []string{
			"samples/count by cpu/nanoseconds",
			"off_cpu/nanoseconds by context_switches/count",
			"runqueue/nanoseconds by context_switches/count",
			"alloc_objects/count by space/bytes",
			"alloc_space/bytes by space/bytes",
			"wall/nanoseconds by wall/nanoseconds",
			"alloc_objects/count by space/bytes, unscaled",
			"alloc_space/bytes by space/bytes, unscaled",
			"samples/count by cpu/nanoseconds, spread", // from a pprof endpoint
			"inuse_objects/count by space/bytes",
			"inuse_space/bytes by space/bytes",
			"goroutines/count by goroutine/count",
			"threads/count by threadcreate/count",
			"block_contentions/count by contentions/count",
			"block_delay/nanoseconds by contentions/count",
			"mutex_contentions/count by contentions/count",
			"mutex_delay/nanoseconds by contentions/count",
		} {
			require.Positive(t, kinds[want], "%s: no %s", over, want)
		}
		require.Len(t, kinds, 17, "%s: a kind of profile without a row", over)
	}
}

// manyRequests returns n requests of at most size bytes each. It also returns the total
// number of events in the requests.
func manyRequests(t *testing.T, n, size int) (out []pprofile.Profiles, events int) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	resource := &samples.Resource{PID: 1, Attributes: []samples.Attribute{{Key: "service.name", Value: "large"}}}
	stacks := make([]*samples.Stack, 500)
	for i := range stacks {
		s := &samples.Stack{}
		for depth := range 20 {
			s.Locations = append(s.Locations, &samples.Location{Type: samples.FrameDotnet, Resolved: true, Lines: []samples.Line{
				{Function: fmt.Sprintf("Shop.Orders.Handler%d.Step%d(System.Int32)", random.IntN(400), depth)},
			}})
		}
		stacks[i] = s
	}
	b := otlpprofiles.NewBuilder(otlpprofiles.Options{ScopeName: "test", MaxRequestBytes: size})
	for len(out) < n {
		batch := samples.NewBatch(256 << 20)
		batch.Start = time.Now().Add(-time.Minute).UnixNano()
		batch.End = batch.Start + int64(30*time.Second)
		for i := range size / 6 {
			// Each part of the time has different stacks.
			part := i * 20 / size
			batch.Add(samples.Key{
				Resource: resource, Type: samples.OnCPU, Stack: stacks[part*100+random.IntN(100)], Period: 10_309_278,
				Thread: samples.Thread{Name: fmt.Sprintf("worker-%d", i%40)},
			}, batch.Start+int64(i))
		}
		for p, tally := range b.Build(batch) {
			if len(out) == n {
				break
			}
			copied := pprofile.NewProfiles()
			p.CopyTo(copied)
			out = append(out, copied)
			for _, k := range tally {
				events += k
			}
		}
	}
	return out, events
}

// TestWhatExportersSplitKeepsTheRules sends requests of two sizes. Exporters do not
// have to split requests that the receiver has already cut, but they have to split
// larger requests. No event may be lost. The parts must keep all rules except for
// two. Each part contains the dictionary of the whole request, so the dictionary
// may contain entries that the part does not use. A part may also exceed max_size
// by the size of the dictionary.
func TestWhatExportersSplitKeepsTheRules(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		size, requests int
		split          bool
	}{
		"as large as the receiver's": {otlpprofiles.DefaultMaxRequestBytes, 2, false},
		"larger":                     {5 << 20, 1, true},
	} {
		t.Run(name, func(t *testing.T) { throughExporters(t, tc.requests, tc.size, tc.split) })
	}
}

// beginApart gives the profiles of a request different start times, as cpu_trigger does.
func beginApart(p pprofile.Profiles) {
	earlier := 0
	for _, rp := range p.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			for _, profile := range sp.Profiles().All() {
				profile.SetTime(profile.Time() - pcommon.Timestamp(earlier))
				profile.SetDurationNano(profile.DurationNano() + uint64(earlier))
				earlier++
			}
		}
	}
}

func throughExporters(t *testing.T, n, size int, split bool) {
	x, in := startTap(t), freePort(t)
	c := startCollector(t, "gateway", fmt.Sprintf(`
receivers:
  otlp: {protocols: {grpc: {endpoint: "127.0.0.1:%d", max_recv_msg_size_mib: 16}}}
exporters:
  otlp_grpc:
    endpoint: "127.0.0.1:%d"
    tls: {insecure: true}%s
  otlp_http:
    endpoint: "http://127.0.0.1:%d"%s
extensions:
  inline_attributes:
service:
  extensions: [inline_attributes]
  telemetry: {logs: {encoding: json}, metrics: {level: none}}
  pipelines:
    profiles: {receivers: [otlp], exporters: [otlp_grpc, otlp_http]}
`, in, x.grpcPort, otlpSettings, x.httpPort, otlpSettings))
	c.wait(startTimeout, "Everything is ready. Begin running and processing data.", nil)
	requests, events := manyRequests(t, n, size)
	client := dial(t, in)
	var sizes []int
	for _, p := range requests {
		beginApart(p)
		r := pprofileotlp.NewExportRequestFromProfiles(p)
		body, err := r.MarshalProto()
		require.NoError(t, err)
		require.Empty(t, conformancetest.CheckRequest(body, conformancetest.Options{Triggered: true, MaxRequestBytes: size, References: true}))
		sizes = append(sizes, len(body))
		_, err = client.Export(t.Context(), r)
		require.NoError(t, err)
	}
	t.Logf("sent %d events in requests of %v bytes", events, sizes)
	for _, over := range []string{"gRPC", "HTTP"} {
		require.Eventually(t, func() bool { return eventsIn(t, x.received(over)) >= events }, startTimeout, time.Second, over)
	}
	c.stop()
	require.Empty(t, x.faults)
	for _, over := range []string{"gRPC", "HTTP"} {
		bodies := x.received(over)
		checkBodies(t, over, bodies, conformancetest.Options{Triggered: true, Split: true, Now: time.Now()})
		arrived, orphans := eventsIn(t, bodies), 0
		for _, b := range bodies {
			if slices.ContainsFunc(conformancetest.Check(decoded(t, b), conformancetest.Options{}), func(v conformancetest.Violation) bool { return v.Rule == conformancetest.Orphan }) {
				orphans++
			}
		}
		t.Logf("%s: %d events in %d requests, %d of which hold what only another one uses", over, arrived, len(bodies), orphans)
		require.Equal(t, events, arrived, over)
		require.Equal(t, split, len(bodies) > n, "%s: %d requests became %d", over, n, len(bodies))
		require.Equal(t, split, orphans > 0, over)
	}
}

func dial(t testing.TB, port int) pprofileotlp.GRPCClient {
	t.Helper()
	conn, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return pprofileotlp.NewGRPCClient(conn)
}

// containerID and podUID identify a container on a node in a cloud.
const (
	containerID = "4f1c0c6b8a2ed0c7b5a49382716f5e4d3c2b1a09f8e7d6c5b4a3928170615243"
	podUID      = "3c1f2a7e-52cb-4a9b-8f0e-2c4a6f1d9b77"
)

// TestShippedConfigurationsLeaveFewLabels sends profiles through the processors of
// the shipped configurations, in the built distribution. The profiles have the
// resource attributes that each cloud's detectors add. At most 20 labels may be
// left. The test also counts the series that threads and forked workers add.
func TestShippedConfigurationsLeaveFewLabels(t *testing.T) {
	t.Parallel()
	g := hosttest.NewCgroupCalled(t, "docker-"+containerID+".scope")
	g.SetQuota(t, cores)
	g.RaiseWeight(t)
	startLoad(t, g.Command(loadBinary), "")
	for _, tc := range []struct {
		config string
		clouds []string
		most   int // the maximum number of resource attributes, as in docs/backends.md
	}{
		{"node", []string{"ec2", "gce", "azure"}, 18},
		{"kubernetes", []string{"eks", "gke", "aks"}, 18},
	} {
		t.Run(tc.config, func(t *testing.T) { throughShipped(t, g, tc.config, tc.clouds, tc.most) })
	}
}

func throughShipped(t *testing.T, g *hosttest.Cgroup, name string, clouds []string, most int) {
	x, in := startTap(t), freePort(t)
	dir := t.TempDir()
	// The test has to change the input, the time until a gate opens, and the ports.
	override := filepath.Join(dir, "override.yaml")
	require.NoError(t, os.WriteFile(override, fmt.Appendf(nil, `
receivers:
  otlp: {protocols: {grpc: {endpoint: "127.0.0.1:%d"}}}
processors:
  cpu_trigger:
    root_path: /
    min_age: 0
    evaluation_interval: 500ms
    pre_trigger: 0
    policies:
      - name: cpu
        match: {cgroup: "%s"}
        any_of: [{monitor: cpu_utilization, threshold: 20, average_over: 3s}]
        duration: 10m
extensions:
  health_check: {endpoint: "127.0.0.1:%d"}
service:
  telemetry: {logs: {encoding: json}, metrics: {level: none, readers: []}}
  pipelines: {profiles: {receivers: [otlp]}}
`, in, g.Path, freePort(t)), 0o644))
	cmd := exec.Command(kubernetesBinary, "--config", shippedForClouds(t, name), "--config", override)
	api := fakeKubernetes(t)
	host, port, _ := net.SplitHostPort(api.Listener.Addr().String())
	cmd.Env = append(os.Environ(), "HOTPROFILE_OTLP_ENDPOINT=127.0.0.1:"+fmt.Sprint(x.grpcPort), "HOTPROFILE_OTLP_INSECURE=true",
		"HOTPROFILE_K8S_AUTH=none", "K8S_NODE_NAME=node-1", "KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port, "HOTPROFILE_ROOT=/")
	c := watch(t, name, cmd)
	c.wait(startTimeout, "Everything is ready. Begin running and processing data.", nil)
	c.wait(startTimeout, "gate opened", of(containerID))
	client := dial(t, in)
	send := func(resources []*samples.Resource, threads int) {
		t.Helper()
		for _, p := range profilesOf(t, resources, threads) {
			_, err := client.Export(t.Context(), pprofileotlp.NewExportRequestFromProfiles(p))
			require.NoError(t, err)
		}
	}
	for _, cloud := range clouds {
		send([]*samples.Resource{cloudResource(t, name, cloud, 0)}, 1)
	}
	arrivedFrom := func(n int) func() bool {
		return func() bool {
			seen := map[any]bool{}
			for _, f := range flatten(decodedAll(t, x.received("gRPC"))) {
				seen[f.resource["cloud.provider"]] = true
			}
			return len(seen) >= n
		}
	}
	require.Eventually(t, arrivedFrom(len(clouds)), startTimeout, 500*time.Millisecond)
	bodies := x.received("gRPC")
	checkBodies(t, name, bodies, conformancetest.Options{Triggered: true, Split: true, Now: time.Now(), MaxLabels: most + 2}) // samples add two labels
	largest := 0
	for _, f := range flatten(decodedAll(t, bodies)) {
		keys := slices.Sorted(maps.Keys(f.resource))
		largest = max(largest, len(keys))
		t.Logf("%s: %d resource attributes: %s", f.resource["cloud.provider"], len(keys), strings.Join(keys, " "))
		require.Equal(t, "cpu", f.resource["hotprofile.trigger.policy"])
		require.Equal(t, "hot", f.resource["hotprofile.trigger.kind"])
		require.NotContains(t, f.resource, "process.pid")
		require.NotContains(t, f.resource, "process.creation.time")
		require.Contains(t, f.resource, "cloud.region")
		if name == "kubernetes" {
			for k, want := range map[string]string{
				"service.name": "checkout", "k8s.pod.name": "checkout-6f7c9d8b5-x2x4z", "k8s.namespace.name": "shop",
				"k8s.deployment.name": "checkout", "k8s.container.name": "app", "k8s.cluster.name": "shop-production", "container.id": containerID,
			} {
				require.Equal(t, want, f.resource[k], k)
			}
		}
	}

	require.Equal(t, most, largest)

	// These cases count the series of services with many threads or many processes.
	var workers []*samples.Resource
	for i := range 20 {
		workers = append(workers, cloudResource(t, name, clouds[0], i))
	}
	for what, tc := range map[string]struct {
		resources     []*samples.Resource
		threads, want int
	}{
		"a JVM of 200 threads":                        {workers[:1], 200, 200},
		"a JVM of 200 threads, thread_attributes: []": {workers[:1], 0, 1},
		"20 forked workers":                           {workers, 1, 1},
		"20 forked workers, thread_attributes: []":    {workers, 0, 1},
		"20 forked workers of 10 named threads each":  {workers, 10, 10},
	} {
		// Each case has its own service version, because an exporter may send a request of
		// an earlier case again. The version distinguishes the profiles of the cases.
		named := make([]*samples.Resource, len(tc.resources))
		for i, r := range tc.resources {
			attributes := slices.DeleteFunc(slices.Clone(r.Attributes), func(a samples.Attribute) bool { return a.Key == "service.version" })
			named[i] = &samples.Resource{Attributes: append(attributes, samples.Attribute{Key: "service.version", Value: what})}
		}
		send(named, tc.threads)
		var series map[string]struct{}
		require.Eventually(t, func() bool {
			series = map[string]struct{}{}
			for _, p := range decodedAll(t, x.received("gRPC")) {
				conformancetest.Series(series, p)
			}
			maps.DeleteFunc(series, func(s string, _ struct{}) bool { return !strings.Contains(s, fmt.Sprintf("service.version=%q", what)) })
			return len(series) >= tc.want
		}, startTimeout, 500*time.Millisecond)
		t.Logf("%s, %s: %d series a kind of profile", name, what, len(series))
		require.Len(t, series, tc.want, what)
	}
}

func decodedAll(t testing.TB, bodies [][]byte) (out []pprofile.Profiles) {
	t.Helper()
	for _, b := range bodies {
		out = append(out, decoded(t, b))
	}
	return out
}

// cloudResource returns the resource of a process in the container. It has the attributes
// that the receiver sets and the attributes that the cloud's detectors add.
func cloudResource(t testing.TB, config, cloud string, process int) *samples.Resource {
	t.Helper()
	b, err := os.ReadFile("../../testdata/otlp/resources/" + cloud + ".json")
	require.NoError(t, err)
	attributes := map[string]string{}
	require.NoError(t, json.Unmarshal(b, &attributes))
	deleteDisabled(t, attributes, shippedForClouds(t, config), cloud)
	attributes["process.creation.time"] = time.Unix(1_780_000_000+int64(process), 0).UTC().Format(time.RFC3339Nano)
	attributes["process.executable.name"], attributes["process.executable.path"] = "java", "/usr/lib/jvm/java-21/bin/java"
	attributes["container.id"] = containerID
	attributes["process.pid"], attributes["process.linux.cgroup"] = fmt.Sprint(process+1), "/docker-"+containerID+".scope"
	// A service can set these attributes in OTEL_RESOURCE_ATTRIBUTES.
	attributes["deployment.environment.name"] = "production"
	if config == "node" {
		maps.Copy(attributes, map[string]string{
			"service.name": "checkout", "service.namespace": "shop", "service.version": "1.24.0", "service.instance.id": "checkout-1",
		})
	} else {
		attributes["k8s.pod.uid"] = podUID
	}
	r := &samples.Resource{}
	for _, k := range slices.Sorted(maps.Keys(attributes)) {
		r.Attributes = append(r.Attributes, samples.Attribute{Key: k, Value: attributes[k]})
	}
	return r
}

// profilesOf returns profiles with an on-CPU sample of three stacks in
// each thread of each process. If threads is 0, each process has one
// thread without a name, as if thread names were not requested.
func profilesOf(t testing.TB, resources []*samples.Resource, threads int) (out []pprofile.Profiles) {
	t.Helper()
	batch := samples.NewBatch(64 << 20)
	batch.Start = time.Now().Add(-5 * time.Second).UnixNano()
	batch.End = time.Now().UnixNano()
	var stacks []*samples.Stack
	for _, f := range []string{"burn", "parse", "write"} {
		stacks = append(stacks, &samples.Stack{Truncated: f == "write", Locations: []*samples.Location{
			{Type: samples.FrameJVM, Resolved: true, Lines: []samples.Line{{Function: f}}},
		}})
	}
	for _, r := range resources {
		for i := range max(threads, 1) {
			// HotSpot shortens thread names in this way to fit the kernel's limit.
			thread := samples.Thread{Name: fmt.Sprintf("http-ni..xec-%d", i)}
			if threads == 0 {
				thread = samples.Thread{}
			}
			for j, s := range stacks {
				s := &samples.Stack{Locations: s.Locations, Truncated: s.Truncated && len(resources)*threads == 1}
				batch.Add(samples.Key{Resource: r, Type: samples.OnCPU, Stack: s, Period: 10_309_278, Thread: thread}, batch.Start+int64(j))
			}
		}
	}
	for p := range otlpprofiles.NewBuilder(otlpprofiles.Options{ScopeName: "test"}).Build(batch) {
		copied := pprofile.NewProfiles()
		p.CopyTo(copied)
		out = append(out, copied)
	}
	return out
}

// fakeKubernetes starts a server that imitates a
// Kubernetes API server with one pod on one node.
func fakeKubernetes(t testing.TB) *httptest.Server {
	object := func(fields map[string]any) map[string]any {
		return map[string]any{"metadata": map[string]any{"resourceVersion": "1"}, "items": []any{fields}}
	}
	owner := func(kind, name string) []any {
		return []any{map[string]any{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": name + "-uid", "controller": true}}
	}
	lists := map[string]map[string]any{
		"pods": object(map[string]any{
			"metadata": map[string]any{
				"name": "checkout-6f7c9d8b5-x2x4z", "namespace": "shop", "uid": podUID, "ownerReferences": owner("ReplicaSet", "checkout-6f7c9d8b5"),
				"labels": map[string]any{"app.kubernetes.io/name": "checkout", "app.kubernetes.io/version": "1.24.0", "pod-template-hash": "6f7c9d8b5"},
			},
			"spec": map[string]any{"nodeName": "node-1", "containers": []any{map[string]any{"name": "app", "image": "registry.example/shop/checkout:1.24.0"}}},
			"status": map[string]any{"podIP": "10.1.2.3", "startTime": "2026-11-01T00:00:00Z", "containerStatuses": []any{
				map[string]any{"name": "app", "containerID": "containerd://" + containerID, "image": "registry.example/shop/checkout:1.24.0", "restartCount": 0},
			}},
		}),
		"replicasets": object(map[string]any{"metadata": map[string]any{
			"name": "checkout-6f7c9d8b5", "namespace": "shop", "uid": "checkout-6f7c9d8b5-uid", "ownerReferences": owner("Deployment", "checkout"),
		}}),
		"deployments": object(map[string]any{"metadata": map[string]any{"name": "checkout", "namespace": "shop", "uid": "checkout-uid"}}),
		"namespaces":  object(map[string]any{"metadata": map[string]any{"name": "shop", "uid": "shop-uid"}}),
		"nodes":       object(map[string]any{"metadata": map[string]any{"name": "node-1", "uid": "node-1-uid"}}),
	}
	closing := make(chan struct{})
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		q := r.URL.Query()
		what := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		switch list, ok := lists[what]; {
		case !ok:
			http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`, http.StatusNotFound)
		case q.Get("watch") != "" && q.Get("sendInitialEvents") != "": // the client then requests a list
			http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`, http.StatusUnprocessableEntity)
		case q.Get("watch") != "": // a watch that stays open without changes
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
			case <-closing:
			}
		default:
			kind := map[string]string{"pods": "PodList", "replicasets": "ReplicaSetList", "deployments": "DeploymentList", "namespaces": "NamespaceList", "nodes": "NodeList"}[what]
			version := "v1"
			if strings.HasPrefix(r.URL.Path, "/apis/apps/") {
				version = "apps/v1"
			}
			list = maps.Clone(list)
			if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") {
				kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
			}
			list["kind"], list["apiVersion"] = kind, version
			_ = json.NewEncoder(w).Encode(list)
		}
	}))
	t.Cleanup(func() {
		close(closing)
		s.Close()
	})
	return s
}
