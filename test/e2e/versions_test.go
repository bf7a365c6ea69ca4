// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/inline"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

// arrivals is an HTTP server that keeps the bodies of requests. The
// key is the path before /v1development/profiles.
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

// neighbour is a collector of another release without our components. It forwards requests
// to sendGRPC over gRPC, and requests to sendHTTP over HTTP. In both cases, it sends them to
// our collector and to the tap sends. Requests to takeGRPC and takeHTTP are forwarded to
// arrivals.
type neighbour struct {
	sendGRPC, sendHTTP, takeGRPC, takeHTTP int
	sends                                  *tap
}

func startNeighbour(t *testing.T, binary, version string, oursGRPC, oursHTTP int, to *arrivals) neighbour {
	n := neighbour{freePort(t), freePort(t), freePort(t), freePort(t), startTap(t)}
	startOn(t, binary, "collector of "+version, fmt.Sprintf(`
receivers:
  otlp/send-grpc: {protocols: {http: {endpoint: "127.0.0.1:%[1]d"}}}
  otlp/send-http: {protocols: {http: {endpoint: "127.0.0.1:%[2]d"}}}
  otlp/take-grpc: {protocols: {grpc: {endpoint: "127.0.0.1:%[3]d"}}}
  otlp/take-http: {protocols: {http: {endpoint: "127.0.0.1:%[4]d"}}}
exporters:
  otlp_grpc: {endpoint: "127.0.0.1:%[5]d", tls: {insecure: true}}
  otlp_http: {endpoint: "http://127.0.0.1:%[6]d"}
  otlp_grpc/sends: {endpoint: "127.0.0.1:%[9]d", tls: {insecure: true}}
  otlp_http/sends: {endpoint: "http://127.0.0.1:%[10]d"}
  otlp_http/took-grpc: {endpoint: "%[7]s/%[8]s-grpc", compression: none}
  otlp_http/took-http: {endpoint: "%[7]s/%[8]s-http", compression: none}
service:
  telemetry: {logs: {encoding: json}, metrics: {level: none}}
  pipelines:
    profiles/send-grpc: {receivers: [otlp/send-grpc], exporters: [otlp_grpc, otlp_grpc/sends]}
    profiles/send-http: {receivers: [otlp/send-http], exporters: [otlp_http, otlp_http/sends]}
    profiles/take-grpc: {receivers: [otlp/take-grpc], exporters: [otlp_http/took-grpc]}
    profiles/take-http: {receivers: [otlp/take-http], exporters: [otlp_http/took-http]}
`, n.sendGRPC, n.sendHTTP, n.takeGRPC, n.takeHTTP, oursGRPC, oursHTTP, to.url, version, n.sends.grpcPort, n.sends.httpPort))
	return n
}

func startOn(t *testing.T, binary, name, config string) *collector {
	t.Helper()
	c := startBinary(t, binary, name, config)
	c.wait(startTimeout, "Everything is ready. Begin running and processing data.", nil)
	return c
}

// TestCollectorsBeforeAndAfterReferencesUnderstandOurs sends profiles of our receiver
// through our collector. The profiles come from collectors of version 0.159 and of the
// newest release. Our collector sends the profiles to collectors of both versions, over
// gRPC and over HTTP. Collectors of version 0.159 write attributes inline. The newest
// release writes attributes as references into the dictionary. The test also sends both
// forms directly to our collector, in protobuf and in JSON, and mixed in one request.
// Every profile must arrive complete.
//
// The newest release is our distribution. The libraries that encode and decode its
// requests have version 0.164. Its otlp receiver and exporters have version 0.162,
// because later versions need a package that the module proxy does not serve. So the
// test also checks that the requests of the newest release contain references.
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
	accepted := func(port int, media string, body []byte) {
		t.Helper()
		code, text := post(t, http.DefaultClient, port, media, body)
		require.Equal(t, http.StatusOK, code, text)
		sent++
	}
	const protobuf, jsonType = "application/x-protobuf", "application/json"
	// These requests come from collectors. The collector of 0.159 gets inline attributes,
	// because it would lose references.
	accepted(before.sendGRPC, protobuf, inlined)
	accepted(before.sendHTTP, protobuf, inlined)
	accepted(newest.sendGRPC, protobuf, references)
	accepted(newest.sendHTTP, protobuf, references)
	// These requests come from other senders over HTTP. Requests of other senders over gRPC
	// follow below.
	accepted(oursHTTP, protobuf, references)
	accepted(oursHTTP, protobuf, inlined)
	accepted(oursHTTP, protobuf, conformancetest.Mixed(references, inlined))
	accepted(oursHTTP, jsonType, asJSON)
	accepted(oursHTTP, jsonType, inlinedJSON)
	accepted(oursHTTP, jsonType, mixedJSON(t, asJSON, inlinedJSON))

	// The receiver rejects an index that is out of range. The error
	// names the index and its place in the request. The sender's
	// next request on the same connection must arrive.
	overGRPC := &connections{}
	client := &http.Client{Transport: dialOnce(t, oursHTTP)}
	conn := overGRPC.grpcClient(t, oursGRPC)
	for _, body := range [][]byte{references, inlined, conformancetest.Mixed(references, inlined)} {
		require.NoError(t, exportRaw(t, conn, body))
		sent++
	}
	for name, tc := range map[string]struct {
		attribute, want string
		encoded         []byte
	}{
		"key": {
			`{"keyStrindex": 9999}`, "resource profiles 1 resource attributes: attribute 1 has invalid key_strindex 9999",
			protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), 9999),
		},
		"value": {
			`{"value": {"stringValueStrindex": 9999}}`, "resource profiles 1 resource attributes: attribute 1 value: invalid string_value_strindex 9999",
			message(2, protowire.AppendVarint(protowire.AppendTag(nil, 8, protowire.VarintType), 9999)),
		},
	} {
		inJSON := fmt.Sprintf(`{"resourceProfiles": [{}, {"resource": {"attributes": [{}, %s]}}], "dictionary": {"stringTable": [""]}}`, tc.attribute)
		resource := message(1, slices.Concat(message(1, nil), message(1, tc.encoded)))
		inProtobuf := slices.Concat(message(1, nil), message(1, resource), message(2, message(5, nil)))
		for media, body := range map[string][]byte{jsonType: []byte(inJSON), protobuf: inProtobuf} {
			code, text := post(t, client, oursHTTP, media, body)
			require.Equal(t, http.StatusBadRequest, code, name)
			require.Contains(t, text, tc.want, media)
			code, text = post(t, client, oursHTTP, protobuf, references)
			require.Equal(t, http.StatusOK, code, text)
			sent++
		}
		err := exportRaw(t, conn, inProtobuf)
		require.Equal(t, codes.InvalidArgument, status.Code(err), name)
		require.ErrorContains(t, err, tc.want)
		require.NoError(t, exportRaw(t, conn, references))
		sent++
	}
	require.EqualValues(t, 1, overGRPC.opened.Load(), "connections over gRPC")

	want := flatten([]pprofile.Profiles{decoded(t, references)})
	for name, copies := range map[string]int{"0.159-grpc": 1, "0.159-http": 2, "newest-grpc": 1, "newest-http": 1, "inline": 1, "references": 1} {
		require.Eventually(t, func() bool { return len(to.at(name)) >= sent*copies }, startTimeout, 100*time.Millisecond, name)
		require.Len(t, to.at(name), sent*copies, name)
		for i, body := range to.at(name) {
			require.Equal(t, want, flatten([]pprofile.Profiles{decoded(t, body)}), "request %d at %s", i, name)
			opts := conformancetest.Options{References: name == "references" || strings.HasPrefix(name, "newest")}
			for _, v := range conformancetest.CheckRequest(body, opts) {
				t.Errorf("request %d at %s: %v", i, name, v)
			}
		}
	}
	// Collectors of 0.159 must send attributes inline.
	// Collectors of the newest release must send references.
	for _, over := range []string{"gRPC", "HTTP"} {
		require.Eventually(t, func() bool {
			return len(before.sends.received(over)) > 0 && len(newest.sends.received(over)) > 0
		}, startTimeout, 100*time.Millisecond, over)
		checkBodies(t, over+" from 0.159", before.sends.received(over), conformancetest.Options{})
		checkBodies(t, over+" from the newest", newest.sends.received(over), conformancetest.Options{References: true})
	}
	require.Empty(t, before.sends.faults)
	require.Empty(t, newest.sends.faults)
	ours.stop()
}

// sampled returns a request that was encoded by an exporter of the newest release. Its
// profiles were sampled by our receiver on this host. The profiles name another host and
// no container, so no unit matches and cpu_trigger does not change the profiles.
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

// connections counts the connections that a client opens.
type connections struct{ opened atomic.Int32 }

func (c *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c.opened.Add(1)
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

func (c *connections) grpcClient(t testing.TB, port int) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return c.dial(ctx, "tcp", address) }))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

// oneConnection sends all requests on one connection. An http.Transport
// may open a second connection, because on a busy machine it may notice
// too late that the first connection is free.
type oneConnection struct {
	net.Conn
	answers *bufio.Reader
}

func dialOnce(t testing.TB, port int) *oneConnection {
	t.Helper()
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &oneConnection{conn, bufio.NewReader(conn)}
}

func (c *oneConnection) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Write(c.Conn); err != nil {
		return nil, err
	}
	return http.ReadResponse(c.answers, r)
}

// post sends a request over HTTP and returns the status and the body of the response.
func post(t testing.TB, client *http.Client, port int, media string, body []byte) (int, string) {
	t.Helper()
	resp, err := client.Post(fmt.Sprintf("http://127.0.0.1:%d/v1development/profiles", port), media, bytes.NewReader(body))
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

// exportRaw sends an encoded request over gRPC without changes.
func exportRaw(t testing.TB, conn *grpc.ClientConn, body []byte) error {
	t.Helper()
	var answer []byte
	return conn.Invoke(t.Context(), exportMethod, &body, &answer, grpc.ForceCodecV2(conformancetest.AsIs{}))
}

// message encodes a protobuf field whose type is a message or a string.
func message(n protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), content)
}

// mixedJSON returns a request in JSON. Every other resource has inline attributes
// from the second request. The remaining resources have references.
func mixedJSON(t *testing.T, references, inlined []byte) []byte {
	t.Helper()
	parse := func(b []byte) (root map[string]any) {
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		require.NoError(t, d.Decode(&root))
		return root
	}
	root := parse(references)
	inlineResources := parse(inlined)["resourceProfiles"].([]any)
	for i, rp := range root["resourceProfiles"].([]any) {
		if i%2 == 0 {
			rp.(map[string]any)["resource"] = inlineResources[i].(map[string]any)["resource"]
		}
	}
	out, err := json.Marshal(root)
	require.NoError(t, err)
	return out
}
