// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	httppprof "net/http/pprof"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configauth"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/allocs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/pprof"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

// endpoint returns a configuration change that adds an endpoint. The
// endpoint is pulled once a second.
func endpoint(at string, change func(*pprof.Config)) func(*Config) {
	e := pprof.DefaultConfig()
	e.ClientConfig.Endpoint = at
	e.Profiles = []string{"goroutine"}
	e.Interval, e.Duration = time.Second, time.Second
	e.ClientConfig.Timeout = time.Minute
	e.Target = configoptional.Some(TargetConfig{PID: os.Getpid()})
	if change != nil {
		change(&e)
	}
	return func(cfg *Config) {
		cfg.CPU.Enabled = false
		cfg.PprofEndpoints = []pprof.Config{e}
	}
}

func pprofHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", httppprof.Index)
	mux.HandleFunc("/debug/pprof/profile", httppprof.Profile)
	return mux
}

// pulled waits until a profile has been received, and returns the profile's resource.
func (r *running) pulled() map[string]any {
	r.t.Helper()
	for end := time.Now().Add(2 * time.Minute); len(r.sink.AllProfiles()) == 0; time.Sleep(10 * time.Millisecond) {
		require.True(r.t, time.Now().Before(end), "nothing came: %v", r.logs.All())
	}
	for _, p := range r.sink.AllProfiles() {
		conformancetest.CheckFatal(r.t, p, conformancetest.Options{Now: time.Now()})
	}
	return resourceOfFirst(r.sink.AllProfiles()[0])
}

func resourceOfFirst(p pprofile.Profiles) map[string]any {
	return p.ResourceProfiles().At(0).Resource().Attributes().AsRaw()
}

// pulls returns the number of pulls with the given outcome.
func (r *running) pulls(want string) (n int64) {
	m, err := r.telemetry.GetMetric("otelcol_cpu_profiler.pprof.pulls")
	if err != nil {
		return 0
	}
	for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
		if o, _ := p.Attributes.Value("outcome"); o.AsString() == want {
			n += p.Value
		}
	}
	return n
}

// TestProfilesCarryTheProcessOfTheTarget pulls profiles from the test process itself.
func TestProfilesCarryTheProcessOfTheTarget(t *testing.T) {
	s := httptest.NewServer(pprofHandler())
	t.Cleanup(s.Close)
	r := start(t, endpoint(s.URL+"/debug/pprof", func(e *pprof.Config) {
		e.Resource = map[string]any{"service.name": "checkout", "shard": 7}
	}))
	got := r.pulled()
	require.EqualValues(t, os.Getpid(), got["process.pid"])
	require.NotEmpty(t, got["process.creation.time"])
	require.Equal(t, "checkout", got["service.name"])
	require.EqualValues(t, 7, got["shard"])
	require.Contains(t, got, "process.executable.name")
	require.Equal(t, 1, r.logs.FilterMessageSnippet("running threads are not sampled").Len())
	require.Positive(t, r.pulls("ok"))
}

// burn uses CPU time until the returned function is called.
func burn() (stop func()) {
	var stopped atomic.Bool
	burning := make(chan struct{})
	go func() {
		defer close(burning)
		for !stopped.Load() { //nolint:revive // it burns CPU time
		}
	}()
	return func() {
		stopped.Store(true)
		<-burning
	}
}

// TestWhatIsSampledIsNotPulled checks that the CPU profile of a program is not pulled if
// its CPU time is already sampled. Otherwise, backends would count the CPU time twice.
// Other profiles of the program are still pulled.
func TestWhatIsSampledIsNotPulled(t *testing.T) {
	var asked atomic.Int64
	handler := pprofHandler()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/debug/pprof/profile" {
			asked.Add(1)
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	r := start(t, func(cfg *Config) {
		endpoint(s.URL+"/debug/pprof", func(e *pprof.Config) { e.Profiles = []string{"profile", "goroutine"} })(cfg)
		cfg.CPU.Enabled = true
		cfg.Targets = []TargetConfig{{PID: os.Getpid()}}
	})
	defer burn()()
	// If a program was sampled shortly before, its CPU profile is not even requested.
	// Otherwise the program would be profiled twice.
	require.Eventually(t, func() bool { return r.pulls("sampled") > max(1, asked.Load()) && r.pulls("ok") > 0 }, patience, 10*time.Millisecond)
	lines := r.logs.FilterMessageSnippet("not pulling a profile of a program that is sampled").All()
	require.Len(t, lines, 1, "once")
	r.stop()
	types := map[string]bool{}
	for _, p := range r.sink.AllProfiles() {
		for _, rp := range p.ResourceProfiles().All() {
			_, pulled := rp.Resource().Attributes().Get("hotprofile.origin")
			for _, sp := range rp.ScopeProfiles().All() {
				for _, profile := range sp.Profiles().All() {
					types[fmt.Sprint(p.Dictionary().StringTable().At(int(profile.SampleType().TypeStrindex())), pulled)] = true
				}
			}
		}
	}
	require.Equal(t, map[string]bool{"samplesfalse": true, "goroutinestrue": true}, types)
}

// TestAllocationsThatAreSampledAreNotPulled samples the allocations of the test process
// itself. The allocation profile must then not be pulled from the same process.
func TestAllocationsThatAreSampledAreNotPulled(t *testing.T) {
	needProbes(t)
	s := httptest.NewServer(pprofHandler())
	t.Cleanup(s.Close)
	r := start(t, func(cfg *Config) {
		withAllocations(os.Getpid(), allocs.Config{When: sampler.WhenAlways})(cfg)
		endpoint(s.URL+"/debug/pprof", func(e *pprof.Config) { e.Profiles = []string{"allocs", "goroutine"} })(cfg)
	})
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
				kept = make([]byte, 1<<20)
			}
		}
	}()
	require.Eventually(t, func() bool { return r.pulls("sampled") >= 2 && r.pulls("ok") > 0 }, patience, 10*time.Millisecond)
	r.stop()
	for _, p := range r.sink.AllProfiles() {
		for _, rp := range p.ResourceProfiles().All() {
			if _, pulled := rp.Resource().Attributes().Get("hotprofile.origin"); !pulled {
				continue
			}
			for _, sp := range rp.ScopeProfiles().All() {
				for _, profile := range sp.Profiles().All() {
					require.Equal(t, "goroutines", p.Dictionary().StringTable().At(int(profile.SampleType().TypeStrindex())))
				}
			}
		}
	}
}

// kept makes the assigned memory escape to the heap.
var kept []byte

// TestSampledAndPulledCPUTimeAreDifferentSeries samples the test process and also pulls
// the CPU profile that the test process serves.
func TestSampledAndPulledCPUTimeAreDifferentSeries(t *testing.T) {
	s := httptest.NewServer(pprofHandler())
	t.Cleanup(s.Close)
	r := start(t, func(cfg *Config) {
		endpoint(s.URL+"/debug/pprof", func(e *pprof.Config) { e.Profiles, e.KeepSampled = []string{"profile"}, true })(cfg)
		cfg.CPU.Enabled = true
		cfg.Targets = []TargetConfig{{PID: os.Getpid()}}
		cfg.ThreadAttributes = nil // pulled samples have no thread attributes
	})
	defer burn()()
	sampled, pulled := make(map[string]struct{}), make(map[string]struct{})
	for end := time.Now().Add(2 * time.Minute); len(sampled) == 0 || len(pulled) == 0; time.Sleep(10 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "%d series sampled, %d pulled: %v", len(sampled), len(pulled), r.logs.All())
		for _, p := range r.sink.AllProfiles() {
			conformancetest.Series(sampled, withSpread(p, false))
			conformancetest.Series(pulled, withSpread(p, true))
		}
		r.sink.Reset()
	}
	for series := range pulled {
		require.NotContains(t, sampled, series)
	}
}

// withSpread returns a copy of p that contains only the profiles whose samples are spread
// over time, as in pulled pprof profiles. If spread is false, the copy contains only the
// profiles whose samples are not spread.
func withSpread(p pprofile.Profiles, spread bool) pprofile.Profiles {
	out := pprofile.NewProfiles()
	p.CopyTo(out)
	d := dictionary.NewReader(out.Dictionary())
	for _, rp := range out.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			sp.Profiles().RemoveIf(func(profile pprofile.Profile) bool {
				has := false
				for key := range d.Attributes(profile.AttributeIndices()) {
					has = has || key == "hotprofile.spread"
				}
				return has != spread
			})
		}
	}
	return out
}

func TestUnixSocketIdentifiesItsProcess(t *testing.T) {
	dir, err := os.MkdirTemp("", "hp")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(dir, "s"))
	require.NoError(t, err)
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: pprofHandler(), ReadHeaderTimeout: time.Minute}}
	s.Start()
	t.Cleanup(s.Close)
	r := start(t, endpoint(pprof.SocketEndpoint, func(e *pprof.Config) {
		e.Socket, e.Target = l.Addr().String(), configoptional.None[TargetConfig]()
		e.Profiles = []string{"profile", "heap", "goroutine"}
	}))
	require.EqualValues(t, os.Getpid(), r.pulled()["process.pid"])
}

// TestLoopbackIdentifiesItsProcess covers loopback addresses, for which the kernel identifies
// the listening process. If resource contains a service.name, no process is added, because
// the listener may be a tunnel to another host.
func TestLoopbackIdentifiesItsProcess(t *testing.T) {
	s := httptest.NewServer(pprofHandler())
	t.Cleanup(s.Close)
	for name, resource := range map[string]map[string]any{"no name": {"shard": 7}, "service.name": {"service.name": "elsewhere"}} {
		t.Run(name, func(t *testing.T) {
			r := start(t, endpoint(s.URL+"/debug/pprof", func(e *pprof.Config) {
				e.Target, e.Resource = configoptional.None[TargetConfig](), resource
			}))
			got := r.pulled()
			if name == "service.name" {
				require.NotContains(t, got, "process.pid")
				return
			}
			require.EqualValues(t, os.Getpid(), got["process.pid"])
			require.NotEmpty(t, got["process.creation.time"])
		})
	}
}

// basic is an extension that adds a user name and a password to requests.
type basic struct {
	component.StartFunc
	component.ShutdownFunc
}

func (basic) RoundTripper(base http.RoundTripper) (http.RoundTripper, error) {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		r.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte("user:secret")))
		return base.RoundTrip(r)
	}), nil
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTLSAndBasicAuth(t *testing.T) {
	guarded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "user" || password != "secret" || r.TLS == nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		pprofHandler().ServeHTTP(w, r)
	})
	s := httptest.NewUnstartedServer(guarded)
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	s.StartTLS()
	t.Cleanup(s.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
	id := component.MustNewIDWithName("extension", "0")
	secure := func(e *pprof.Config) { e.ClientConfig.TLS.CAFile = ca }
	r := startTo(t, nil, endpoint(s.URL+"/debug/pprof", func(e *pprof.Config) {
		secure(e)
		e.ClientConfig.Auth = configoptional.Some(configauth.Config{AuthenticatorID: id})
	}), basic{})
	require.EqualValues(t, os.Getpid(), r.pulled()["process.pid"])

	without := start(t, endpoint(s.URL+"/debug/pprof", secure))
	for end := time.Now().Add(2 * time.Minute); without.pulls("refused") == 0; time.Sleep(10 * time.Millisecond) {
		require.True(t, time.Now().Before(end))
	}
	require.Empty(t, without.sink.AllProfiles())
}

func TestHotEndpointIsPulledWhileItsProcessIsHot(t *testing.T) {
	s := httptest.NewServer(pprofHandler())
	t.Cleanup(s.Close)
	factory := hotunitsextension.NewFactory()
	ext, err := factory.Create(t.Context(), extension.Settings{
		ID: component.NewID(factory.Type()), TelemetrySettings: componenttest.NewNopTelemetrySettings(),
	}, factory.CreateDefaultConfig())
	require.NoError(t, err)
	hot := ext.(*hotunitsextension.HotUnits).Publisher(component.MustNewID("cpu_trigger"))
	defer hot.Close()
	r := startTo(t, nil, endpoint(s.URL+"/debug/pprof", nil), ext)
	hot.Publish([]hotunitsextension.Unit{{Name: "other", PID: 1}})
	require.Empty(t, r.sink.AllProfiles())
	hot.Publish([]hotunitsextension.Unit{{Name: "this", PID: os.Getpid()}})
	require.EqualValues(t, os.Getpid(), r.pulled()["process.pid"])
}
