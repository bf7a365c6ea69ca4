// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package cpuprofilerreceiver

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/dotnet"
	"github.com/hotprofile/hotprofile/test/dotnettest"
)

// fakeClock is a clock whose time is set by the test.
type fakeClock struct{ now, offset int64 }

func (c *fakeClock) Monotonic() int64 { return c.now }
func (c *fakeClock) Offset() int64    { return c.offset }

// TestDotnetGolden compares the OTLP profiles of a few captures with the files in
// testdata/golden. The sender of the captures is identified by a Unix socket.
// HOTPROFILE_UPDATE_GOLDEN=1 rewrites the files.
func TestDotnetGolden(t *testing.T) {
	for _, name := range []string{"web/002.threads", "allocations/021.allocations", "selected/003.selected", "selected/042.threads", "names/003.allocations"} {
		t.Run(name, func(t *testing.T) {
			buffer := buffer.New(1<<20, &fakeClock{offset: 1})
			who := processes.Identity{Process: procfs.Process{PID: 77, Start: 5}, Started: time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC), Cgroup: "/system.slice/shop.service"}
			intake := dotnet.New(&sampler.Shared{
				HostInfo: sampler.HostInfo{Name: "node-1"}, Buffer: buffer, ThreadName: true,
				ExportInterval: createDefaultConfig().ExportInterval, Logger: zap.NewNop(),
			}, func(int) (processes.Identity, error) { return who, nil })
			c := dotnettest.Read(t, name)[0]
			req := httptest.NewRequest(http.MethodPost, c.Path(), bytes.NewReader(c.Bytes))
			req = req.WithContext(dotnet.WithClient(req.Context(), dotnet.Client{Process: procfs.Process{PID: who.PID, Start: who.Start}}))
			req.Header.Set("Content-Type", "application/octet-stream")
			req.Header.Set("Otel-Resource-Attributes", "service.name=shop,telemetry.sdk.name=opentelemetry,telemetry.sdk.language=dotnet")
			w := httptest.NewRecorder()
			intake.ServeHTTP(w, req)
			require.Equal(t, http.StatusAccepted, w.Code, w.Body)

			batch, ok := buffer.Take()
			require.True(t, ok)
			var got []byte
			for request := range otlpprofiles.NewBuilder(otlpprofiles.Options{ScopeName: "hotprofile", Rand: rand.NewChaCha8([32]byte{1})}).Build(batch) {
				line, err := (&pprofile.JSONMarshaler{}).MarshalProfiles(request)
				require.NoError(t, err)
				var pretty bytes.Buffer
				require.NoError(t, json.Indent(&pretty, line, "", " "))
				got = append(append(got, pretty.Bytes()...), '\n')
			}
			file := filepath.Join("testdata", "golden", "dotnet", strings.ReplaceAll(name, "/", "-")+".json")
			if os.Getenv("HOTPROFILE_UPDATE_GOLDEN") == "1" {
				require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
				require.NoError(t, os.WriteFile(file, got, 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got))
		})
	}
}
