// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"

	"github.com/hotprofile/hotprofile/test/conformancetest"
)

// TestInlineAttributesAreRetriedWholeAndRefusedOnce sends to a backend that refuses the
// first request temporarily. The retry must have the same bytes with inline attributes.
// The exporters must drop a request at once if it is too large without references,
// because a retry would be just as large. The log must name this reason.
func TestInlineAttributesAreRetriedWholeAndRefusedOnce(t *testing.T) {
	t.Parallel()
	tries := make(chan []byte, 16)
	var answered atomic.Int32
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		in, err := gzip.NewReader(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if body, err := io.ReadAll(in); err == nil {
			tries <- body
		}
		if answered.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(backend.Close)
	in, largeIn := freePort(t), freePort(t)
	c := startOn(t, collectorBinary, "inlining", fmt.Sprintf(`
receivers:
  otlp: {protocols: {grpc: {endpoint: "127.0.0.1:%d"}}}
  otlp/large: {protocols: {grpc: {endpoint: "127.0.0.1:%d"}}}
exporters:
  otlp_http: {endpoint: "%s", middlewares: [{id: inline_attributes}], retry_on_failure: {initial_interval: 100ms}}
  otlp_grpc: {endpoint: "127.0.0.1:%d", tls: {insecure: true}, middlewares: [{id: inline_attributes}]}
extensions:
  inline_attributes:
service:
  extensions: [inline_attributes]
  telemetry: {logs: {encoding: json, sampling: {enabled: false}}, metrics: {level: none}}
  pipelines:
    profiles: {receivers: [otlp], exporters: [otlp_http]}
    profiles/large: {receivers: [otlp/large], exporters: [otlp_http, otlp_grpc]}
`, in, largeIn, backend.URL, startWire(t).port))
	send := func(port int, p pprofile.Profiles) {
		t.Helper()
		_, err := dial(t, port).Export(t.Context(), pprofileotlp.NewExportRequestFromProfiles(p))
		require.NoError(t, err)
	}
	arrival := func() []byte {
		t.Helper()
		select {
		case body := <-tries:
			return body
		case <-time.After(startTimeout):
			t.Fatalf("nothing arrived:\n%s", c.text())
			return nil
		}
	}

	golden := goldenRequest(t)
	want := flatten([]pprofile.Profiles{golden})
	send(in, golden)
	refused, retried := arrival(), arrival()
	require.Equal(t, refused, retried)
	require.Equal(t, want, flatten([]pprofile.Profiles{decoded(t, retried)}))
	for _, v := range conformancetest.CheckRequest(retried, conformancetest.Options{Triggered: true}) {
		t.Error(v)
	}
	require.Len(t, c.lines("Exporting failed. Will retry the request after interval."), 1)

	large := goldenRequest(t)
	list := large.ResourceProfiles().At(0).Resource().Attributes().PutEmptySlice("list")
	for range 70 {
		list.AppendEmpty().SetStr(strings.Repeat("x", 1<<20))
	}
	send(largeIn, large)
	for _, exporter := range []string{"otlp_http", "otlp_grpc"} {
		c.wait(startTimeout, "Exporting failed. Dropping data.", func(l logLine) bool {
			return l.str("otelcol.component.id") == exporter && strings.Contains(l.str("error"), "inline_attributes: read the request: its attributes take more than 64 MiB without references")
		})
	}
	require.Len(t, c.lines("Exporting failed. Will retry the request after interval."), 1)
	c.stop()
	require.Empty(t, tries)
}

// TestOneVariableChoosesTheFormOfAttributes sends profiles through the shipped gateway. The
// test enables the second backend, which is commented out in the shipped configuration. The
// gateway runs once as shipped and once with HOTPROFILE_INLINE_ATTRIBUTES=false.
func TestOneVariableChoosesTheFormOfAttributes(t *testing.T) {
	t.Parallel()
	shipped, err := os.ReadFile("../../config/gateway.yaml")
	require.NoError(t, err)
	for name, tc := range map[string]struct {
		env        []string
		references bool
	}{
		"as shipped": {nil, false},
		"false":      {[]string{"HOTPROFILE_INLINE_ATTRIBUTES=false"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			x, in := startTap(t), freePort(t)
			config := string(shipped)
			for before, after := range map[string]string{
				"# otlp_http/second:": "otlp_http/second:",
				"https://second":      fmt.Sprintf("http://127.0.0.1:%d", x.httpPort),
				"exporters: [otlp_grpc] # and otlp_http/second": "exporters: [otlp_grpc, otlp_http/second] #",
				"    metrics:\n      readers:":                  "    metrics:\n      level: none\n      readers:",
			} {
				require.Equal(t, 1, strings.Count(config, before), before)
				config = strings.Replace(config, before, after, 1)
			}
			c := startCollector(t, "gateway", config, append(tc.env,
				fmt.Sprintf("HOTPROFILE_LISTEN=127.0.0.1:%d", in), fmt.Sprintf("HOTPROFILE_OTLP_ENDPOINT=127.0.0.1:%d", x.grpcPort),
				"HOTPROFILE_OTLP_INSECURE=true", fmt.Sprintf("HOTPROFILE_HEALTH_ENDPOINT=127.0.0.1:%d", freePort(t)))...)
			var sent error
			require.Eventually(t, func() bool { // until the gateway listens, because its log is not JSON
				_, sent = dial(t, in).Export(t.Context(), pprofileotlp.NewExportRequestFromProfiles(goldenRequest(t)))
				return sent == nil
			}, startTimeout, 100*time.Millisecond, sent)
			for _, over := range []string{"gRPC", "HTTP"} {
				require.Eventually(t, func() bool { return len(x.received(over)) > 0 }, startTimeout, 50*time.Millisecond, over)
				checkBodies(t, over, x.received(over), conformancetest.Options{Triggered: true, References: tc.references})
			}
			c.stop()
			require.Empty(t, x.faults)
		})
	}
}

// goldenRequest returns the golden request of the CPU profile.
func goldenRequest(t testing.TB) pprofile.Profiles {
	t.Helper()
	text, err := os.ReadFile("../../testdata/otlp/golden/on_cpu.json")
	require.NoError(t, err)
	p, err := (&pprofile.JSONUnmarshaler{}).UnmarshalProfiles(text)
	require.NoError(t, err)
	return p
}
