// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// published is a source of policies.
type published interface {
	// publish replaces the policies.
	publish(t *testing.T, document string)
	yaml() string
}

type publishedFile string

func (f publishedFile) yaml() string { return fmt.Sprintf("{file: %q}", string(f)) }

func (f publishedFile) publish(t *testing.T, document string) {
	require.NoError(t, os.WriteFile(string(f)+".new", []byte(document), 0o600))
	require.NoError(t, os.Rename(string(f)+".new", string(f)))
}

// publishedServer is an HTTP server that requires a token and responds with ETags.
type publishedServer struct {
	*httptest.Server
	mu          sync.Mutex
	document    string
	version     int
	notModified int
}

func (s *publishedServer) yaml() string {
	return fmt.Sprintf("{http: {endpoint: %q, headers: {Authorization: Bearer of-this-test}}}", s.URL)
}

func (s *publishedServer) publish(_ *testing.T, document string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.document = document
	s.version++
}

func (s *publishedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	etag := fmt.Sprintf("%q", fmt.Sprint(s.version))
	w.Header().Set("ETag", etag)
	switch {
	case r.Header.Get("Authorization") != "Bearer of-this-test":
		w.WriteHeader(http.StatusUnauthorized)
	case r.Header.Get("If-None-Match") == etag:
		s.notModified++
		w.WriteHeader(http.StatusNotModified)
	default:
		_, _ = io.WriteString(w, s.document)
	}
}

// TestPoliciesChangeWithoutARestart changes policies while two gates of a
// hot service are open. A broken list must have no effect. After a valid
// list, one gate must stay open and the other gate must close.
func TestPoliciesChangeWithoutARestart(t *testing.T) {
	t.Parallel()
	hot := newCgroup(t, "hot")
	hot.SetQuota(t, cores)
	hot.RaiseWeight(t)
	server := &publishedServer{}
	server.Server = httptest.NewServer(server)
	defer server.Close()
	for name, from := range map[string]published{
		"file": publishedFile(filepath.Join(t.TempDir(), "policies.yaml")),
		"http": server,
	} {
		t.Run(name, func(t *testing.T) {
			policy := func(name, monitor string, threshold float64) string {
				return fmt.Sprintf("- {name: %s, match: {cgroup: %q}, any_of: [{monitor: %s, threshold: %v, average_over: 3s}], duration: 1h}\n", name, hot.Path, monitor, threshold)
			}
			from.publish(t, policy("stays", "cpu_utilization", 50)+policy("goes", "cpu_usage", 0.1))
			w := startWire(t)
			metrics := freePort(t)
			c := gated(t, w, metrics, "\n    policies_from: "+from.yaml())
			startLoad(t, hot.Command(loadBinary), hotService)
			by := func(policy string) func(logLine) bool {
				return func(l logLine) bool { return l.str("unit") == hot.Path && l.str("policy") == policy }
			}
			opened := c.wait(startTimeout, "gate opened", by("stays"))
			c.wait(startTimeout, "gate opened", by("goes"))

			from.publish(t, policy("comes", "thread_count", 0)+"- name: goes\n  any_of:\n    - {monitor: cpu_usage, treshold: 1}\n")
			refused := c.wait(startTimeout, "policies refused", nil)
			require.Contains(t, refused.str("error"), `line 4: policies[1].any_of[0].treshold: unknown key of "goes": did you mean "threshold"?`)
			require.Empty(t, c.lines("gate closed"))

			from.publish(t, policy("comes", "thread_count", 0)+policy("stays", "cpu_utilization", 50))
			closed := c.wait(startTimeout, "gate closed", by("goes"))
			require.Equal(t, "policy removed", closed.str("why"))
			changed := c.wait(startTimeout, "policies changed", func(l logLine) bool { return fmt.Sprint(l["removed"]) == "[goes]" })
			require.Equal(t, "[comes]", fmt.Sprint(changed["added"]))
			require.Empty(t, changed["changed"])
			c.wait(startTimeout, "gate opened", by("comes"))
			require.Len(t, c.lines("gate closed"), 1, "the gate of a policy that did not change stays open")
			require.Equal(t, 2.0, scrape(t, metrics, "otelcol_cpu_trigger_policies", `version="`+changed.str("version")+`"`))

			if from == server {
				require.Eventually(t, func() bool {
					server.mu.Lock()
					defer server.mu.Unlock()
					return server.notModified > 0
				}, startTimeout, 100*time.Millisecond)
			}

			// The gate of the policy that stays closes only at shutdown,
			// with the trigger ID of its opening.
			c.stop()
			for _, l := range c.lines("gate closed") {
				if l.str("policy") == "stays" {
					require.Equal(t, "shutdown", l.str("why"))
					require.Equal(t, opened.str("trigger_id"), l.str("trigger_id"))
				}
			}
			require.Len(t, c.lines("gate closed"), 3)
		})
	}
}
