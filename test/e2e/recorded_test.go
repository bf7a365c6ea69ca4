// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCollectorsSendWhatIsRecorded sends the golden request of the CPU profile through the
// collector versions 0.159 and 0.164. It compares the requests that the collectors send with
// the files in testdata/otlp/recorded, which are the input of decoding tests. With
// HOTPROFILE_RECORD=1, the test writes the files first.
func TestCollectorsSendWhatIsRecorded(t *testing.T) {
	t.Parallel()
	golden, err := os.ReadFile("../../testdata/otlp/golden/on_cpu.json")
	require.NoError(t, err)
	for version, binary := range map[string]string{"0.159": os.Getenv("HOTPROFILE_PEER"), "0.164": collectorBinary} {
		t.Run(version, func(t *testing.T) {
			require.NotEmpty(t, binary, "HOTPROFILE_PEER must be the path of a collector of 0.159; run `make e2e`")
			in, x, to := freePort(t), startTap(t), startArrivals(t)
			c := startOn(t, binary, "collector of "+version, fmt.Sprintf(`
receivers:
  otlp: {protocols: {http: {endpoint: "127.0.0.1:%d"}}}
exporters:
  otlp_grpc: {endpoint: "127.0.0.1:%d", tls: {insecure: true}}
  otlp_http: {endpoint: "%s/protobuf", compression: none}
  otlp_http/json: {endpoint: "%[3]s/json", compression: none, encoding: json}
service:
  telemetry: {logs: {encoding: json}, metrics: {level: none}}
  pipelines:
    profiles: {receivers: [otlp], exporters: [otlp_grpc, otlp_http, otlp_http/json]}
`, in, x.grpcPort, to.url))
			code, text := post(t, http.DefaultClient, in, "application/json", golden)
			require.Equal(t, http.StatusOK, code, text)
			for name, sent := range map[string]func() [][]byte{
				"grpc.pb":   func() [][]byte { return x.received("gRPC") },
				"http.pb":   func() [][]byte { return to.at("protobuf") },
				"http.json": func() [][]byte { return to.at("json") },
			} {
				require.Eventually(t, func() bool { return len(sent()) == 1 }, startTimeout, 50*time.Millisecond, name)
				file := filepath.Join("../../testdata/otlp/recorded", version, name)
				if os.Getenv("HOTPROFILE_RECORD") == "1" {
					require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
					require.NoError(t, os.WriteFile(file, sent()[0], 0o644))
				}
				want, err := os.ReadFile(file)
				require.NoError(t, err)
				require.Equal(t, string(want), string(sent()[0]), "%s is not what the collector sends: record it again", file)
			}
			c.stop()
		})
	}
}
