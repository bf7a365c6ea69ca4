// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/conformancetest"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/inline"
)

// arrivals is an HTTP server that keeps the bodies that were posted, by the path
// before /v1development/profiles.
type arrivals struct {
	url string

	mu     sync.Mutex
	bodies map[string][][]byte
}

func startArrivals(t testing.TB) *arrivals {
	a := &arrivals{bodies: map[string][][]byte{}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Content-Encoding") != "" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		name := strings.Trim(strings.TrimSuffix(r.URL.Path, "/v1development/profiles"), "/")
		a.mu.Lock()
		defer a.mu.Unlock()
		a.bodies[name] = append(a.bodies[name], body)
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(s.Close)
	a.url = s.URL
	return a
}

func (a *arrivals) at(name string) [][]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.bodies[name])
}

// neighbour is a collector of some release without components of ours. It sends on
// over gRPC and over HTTP: to ours what reaches sendGRPC and sendHTTP, to arrivals
// what reaches takeGRPC and takeHTTP.
type neighbour struct {
	sendGRPC, sendHTTP, takeGRPC, takeHTTP int
}

func startNeighbour(t *testing.T, binary, version string, oursGRPC, oursHTTP int, to *arrivals) neighbour {
	n := neighbour{freePort(t), freePort(t), freePort(t), freePort(t)}
	startOn(t, binary, "collector of "+version, fmt.Sprintf(`
receivers:
  otlp/send-grpc: {protocols: {http: {endpoint: "127.0.0.1:%[1]d"}}}
  otlp/send-http: {protocols: {http: {endpoint: "127.0.0.1:%[2]d"}}}
  otlp/take-grpc: {protocols: {grpc: {endpoint: "127.0.0.1:%[3]d"}}}
  otlp/take-http: {protocols: {http: {endpoint: "127.0.0.1:%[4]d"}}}
exporters:
  otlp_grpc: {endpoint: "127.0.0.1:%[5]d", tls: {insecure: true}}
  otlp_http: {endpoint: "http://127.0.0.1:%[6]d"}
  otlp_http/took-grpc: {endpoint: "%[7]s/%[8]s-grpc", compression: none}
  otlp_http/took-http: {endpoint: "%[7]s/%[8]s-http", compression: none}
service:
  telemetry: {logs: {encoding: json}, metrics: {level: none}}
  pipelines:
    profiles/send-grpc: {receivers: [otlp/send-grpc], exporters: [otlp_grpc]}
    profiles/send-http: {receivers: [otlp/send-http], exporters: [otlp_http]}
    profiles/take-grpc: {receivers: [otlp/take-grpc], exporters: [otlp_http/took-grpc]}
    profiles/take-http: {receivers: [otlp/take-http], exporters: [otlp_http/took-http]}
`, n.sendGRPC, n.sendHTTP, n.takeGRPC, n.takeHTTP, oursGRPC, oursHTTP, to.url, version))
	return n
}

func startOn(t *testing.T, binary, name, config string) *collector {
	t.Helper()
	c := startBinary(t, binary, name, config)
	c.wait(startTimeout, "Everything is ready. Begin running and processing data.", nil)
	return c
}

// TestCollectorsBeforeAndAfterReferencesUnderstandOurs sends what our receiver has
// sampled from collectors of 0.159, which writes attributes inline, and of the
// newest release, which writes them as references into the dictionary, through ours
// to collectors of both, over gRPC and over HTTP; and to ours in both forms, in
// protobuf and in JSON, and mixed in one request. Everything arrives whole.
func TestCollectorsBeforeAndAfterReferencesUnderstandOurs(t *testing.T) {
	t.Parallel()
	old := os.Getenv("HOTPROFILE_PEER")
	if old == "" {
		t.Fatal("HOTPROFILE_PEER must be the path of a collector of 0.159; run `make e2e`")
	}
	to, oursGRPC, oursHTTP := startArrivals(t), freePort(t), freePort(t)
	before := startNeighbour(t, old, "0.159", oursGRPC, oursHTTP, to)
	newest := startNeighbour(t, collectorBinary, "newest", oursGRPC, oursHTTP, to)
	ours := startOn(t, collectorBinary, "ours", fmt.Sprintf(`
receivers:
  otlp: {protocols: {grpc: {endpoint: "127.0.0.1:%d"}, http: {endpoint: "127.0.0.1:%d"}}}
processors:
  cpu_trigger:
    unmatched: pass
    policies: [{name: never, any_of: [{monitor: cpu_utilization, threshold: 1000000}]}]
exporters:
  otlp_grpc/before: {endpoint: "127.0.0.1:%d", tls: {insecure: true}, middlewares: [{id: inline_attributes}]}
  otlp_http/before: {endpoint: "http://127.0.0.1:%d", compression: zstd, middlewares: [{id: inline_attributes}]}
  otlp_http/before-json: {endpoint: "http://127.0.0.1:%[4]d", encoding: json, middlewares: [{id: inline_attributes}]}
  otlp_grpc/newest: {endpoint: "127.0.0.1:%[5]d", tls: {insecure: true}}
  otlp_http/newest: {endpoint: "http://127.0.0.1:%[6]d"}
  otlp_http/inline: {endpoint: "%[7]s/inline", compression: none, middlewares: [{id: inline_attributes}]}
  otlp_http/references: {endpoint: "%[7]s/references", compression: none}
extensions:
  inline_attributes:
service:
  extensions: [inline_attributes]
  telemetry: {logs: {encoding: json}, metrics: {level: none}}
  pipelines:
    profiles:
      receivers: [otlp]
      processors: [cpu_trigger]
      exporters: [otlp_grpc/before, otlp_http/before, otlp_http/before-json, otlp_grpc/newest, otlp_http/newest, otlp_http/inline, otlp_http/references]
`, oursGRPC, oursHTTP, before.takeGRPC, before.takeHTTP, newest.takeGRPC, newest.takeHTTP, to.url))

	references := sampled(t, to)
	inlined, err := inline.Request(references)
	require.NoError(t, err)
	require.NotEqual(t, references, inlined)
	asJSON, err := (&pprofile.JSONMarshaler{}).MarshalProfiles(decoded(t, references))
	require.NoError(t, err)
	inlinedJSON, err := inline.JSON(asJSON)
	require.NoError(t, err)

	sent := 0
	post := func(port int, media string, body []byte) (int, string) {
		resp, err := http.Post(fmt.Sprintf("http://127.0.0.1:%d/v1development/profiles", port), media, bytes.NewReader(body))
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(text)
	}
	accepted := func(port int, media string, body []byte) {
		t.Helper()
		code, text := post(port, media, body)
		require.Equal(t, http.StatusOK, code, text)
		sent++
	}
	const protobuf, jsonType = "application/x-protobuf", "application/json"
	// From collectors: 0.159 loses the attributes of what it receives as references.
	accepted(before.sendGRPC, protobuf, inlined)
	accepted(before.sendHTTP, protobuf, inlined)
	accepted(newest.sendGRPC, protobuf, references)
	accepted(newest.sendHTTP, protobuf, references)
	// From other senders, over HTTP and gRPC.
	accepted(oursHTTP, protobuf, references)
	accepted(oursHTTP, protobuf, inlined)
	accepted(oursHTTP, jsonType, asJSON)
	accepted(oursHTTP, jsonType, inlinedJSON)
	accepted(oursHTTP, jsonType, mixed(t, asJSON, inlinedJSON))
	_, err = dial(t, oursGRPC).Export(t.Context(), pprofileotlp.NewExportRequestFromProfiles(decoded(t, references)))
	require.NoError(t, err)
	sent++

	// An index out of range is refused, with its place, and costs nothing beside it.
	broken := bytes.Replace(asJSON, []byte(`"keyStrindex":`), []byte(`"keyStrindex":9999`), 1)
	require.NotEqual(t, asJSON, broken)
	code, text := post(oursHTTP, jsonType, broken)
	require.Equal(t, http.StatusBadRequest, code)
	t.Logf("an index out of range: %s", text)
	require.Contains(t, text, "9999")
	err = exportRaw(t, oursGRPC, outOfRange())
	t.Logf("over gRPC: %v", err)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.ErrorContains(t, err, "9999")

	want := flatten([]pprofile.Profiles{decoded(t, references)})
	for name, copies := range map[string]int{"0.159-grpc": 1, "0.159-http": 2, "newest-grpc": 1, "newest-http": 1, "inline": 1, "references": 1} {
		require.Eventually(t, func() bool { return len(to.at(name)) >= sent*copies }, startTimeout, 100*time.Millisecond, name)
		require.Len(t, to.at(name), sent*copies, name)
		for i, body := range to.at(name) {
			require.Equal(t, want, flatten([]pprofile.Profiles{decoded(t, body)}), "request %d at %s", i, name)
			opts := conformancetest.Options{References: name == "references" || strings.HasPrefix(name, "newest")}
			if strings.HasPrefix(name, "0.159") || name == "inline" || name == "references" {
				for _, v := range conformancetest.CheckRequest(body, opts) {
					t.Errorf("request %d at %s: %v", i, name, v)
				}
			}
		}
	}
	ours.stop()
}

// sampled returns a request as an exporter of the newest release writes it, with
// what our receiver has sampled on this host. It says that it is from another host
// and of no container, so that no unit here matches and cpu_trigger does not change it.
func sampled(t *testing.T, to *arrivals) []byte {
	c := startOn(t, collectorBinary, "sampler", fmt.Sprintf(`
receivers:
  cpu_profiler: {export_interval: 500ms}
processors:
  resource:
    attributes:
      - {key: host.id, value: another, action: upsert}
      - {key: host.name, value: another, action: upsert}
      - {key: service.name, value: sampled, action: upsert}
      - {key: process.linux.cgroup, action: delete} # cpu_trigger removes it
      - {key: container.id, action: delete} # names a unit whatever the host
exporters:
  otlp_http: {endpoint: "%s/sampled", compression: none}
service:
  telemetry: {logs: {encoding: json}, metrics: {level: none}}
  pipelines:
    profiles: {receivers: [cpu_profiler], processors: [resource], exporters: [otlp_http]}
`, to.url))
	defer c.stop()
	var body []byte
	require.Eventually(t, func() bool {
		for _, b := range to.at("sampled") {
			if decoded(t, b).ResourceProfiles().Len() > 1 {
				body = b
			}
		}
		return body != nil
	}, startTimeout, 100*time.Millisecond)
	return body
}

// exportRaw sends a request over gRPC as it is.
func exportRaw(t *testing.T, port int, body []byte) error {
	t.Helper()
	conn, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	var answer []byte
	return conn.Invoke(t.Context(), exportMethod, &body, &answer, grpc.ForceCodecV2(asIs{}))
}

// outOfRange returns a request with an attribute whose key is entry 9999 of a
// string table of one entry.
func outOfRange() []byte {
	field := func(n protowire.Number, body []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), body)
	}
	key := protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), 9999)
	resource := field(1, field(1, key))
	return append(field(1, resource), field(2, field(5, nil))...)
}

// mixed returns a request in JSON whose first resource has its attributes inline,
// as in the second request, and all others as references.
func mixed(t *testing.T, references, inlined []byte) []byte {
	t.Helper()
	parse := func(b []byte) (root map[string]any) {
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		require.NoError(t, d.Decode(&root))
		return root
	}
	first := func(root map[string]any) map[string]any {
		return root["resourceProfiles"].([]any)[0].(map[string]any)
	}
	root := parse(references)
	first(root)["resource"] = first(parse(inlined))["resource"]
	out, err := json.Marshal(root)
	require.NoError(t, err)
	return out
}
