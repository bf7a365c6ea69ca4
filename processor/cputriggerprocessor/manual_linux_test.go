// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadata"
)

// TestOpeningByHandMakesHotAndIsRememberedOverARestart runs the processor with a server,
// a storage and the hot_units extension, like in a collector. A unit whose gate is opened
// manually must become hot. A used-up budget must stay used up after a restart.
func TestOpeningByHandMakesHotAndIsRememberedOverARestart(t *testing.T) {
	factory := hotunitsextension.NewFactory()
	ext, err := factory.Create(t.Context(), extensiontest.NewNopSettings(factory.Type()), factory.CreateDefaultConfig())
	require.NoError(t, err)
	require.NoError(t, ext.Start(t.Context(), componenttest.NewNopHost()))
	t.Cleanup(func() { require.NoError(t, ext.Shutdown(context.Background())) })
	hot := ext.(*hotunitsextension.HotUnits)
	host := hostWith{component.NewID(factory.Type()): ext}
	host[storageID] = fileStorage(t, t.TempDir())

	dir, err := os.MkdirTemp("", "hot") // t.TempDir is too long for a socket's path
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "trigger.sock")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	post := func(target string) (status int, answer map[string]any) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://manual"+target, nil)
		require.NoError(t, err)
		resp, err := client.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(body, &answer), "%s", body)
		return resp.StatusCode, answer
	}

	cfg, err := load(t, fmt.Sprintf(`
storage: %s
manual: {transport: unix, endpoint: %s}
budgets: {max_triggers_per_hour: 1}
policies: # nothing opens by itself, whatever is hot on this host
  - {name: cpu, match: {cgroup: /no/such}, any_of: [{monitor: cpu_utilization, threshold: 80, average_over: 30s}]}
`, storageID, socket))
	require.NoError(t, err)
	mine := fmt.Sprintf("/v1/trigger?unit=%d&duration=1m", os.Getpid())
	var opened string
	for run := range 2 {
		p, err := newProcessor(processortest.NewNopSettings(metadata.Type), cfg, consumertest.NewNop())
		require.NoError(t, err)
		require.NoError(t, p.Start(t.Context(), host))
		require.Empty(t, hot.Hot())

		status, answer := post("/v1/trigger?unit=4194999")
		require.Equal(t, http.StatusNotFound, status, answer)

		status, answer = post(mine)
		if run == 0 {
			require.Equal(t, http.StatusOK, status, answer)
			require.NotEmpty(t, answer["trigger_id"])
			opened = answer["unit"].(string)
			require.Len(t, hot.Hot(), 1)
			require.Equal(t, opened, hot.Hot()[0].Name)

			status, again := post(mine)
			require.Equal(t, http.StatusOK, status, "it is prolonged: %v", again)
			require.Equal(t, answer["trigger_id"], again["trigger_id"])
		} else {
			require.Equal(t, http.StatusTooManyRequests, status, answer)
			require.Equal(t, "max_triggers_per_hour", answer["budget"])
			require.Empty(t, hot.Hot())
		}
		require.NoError(t, p.Shutdown(t.Context()))
		require.Empty(t, hot.Hot(), "who has ended says nothing")
		require.NoFileExists(t, socket)
	}
}
