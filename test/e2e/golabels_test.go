// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGoroutinesHaveTheirLabelsByDefault runs a Go program that sets
// labels. Its samples must have links and routes by default. The labels
// name a route for each span, so a wrong label would not fit its link.
func TestGoroutinesHaveTheirLabelsByDefault(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "golabels")
	build := exec.Command("go", "build", "-o", program, "-ldflags=-s -w", "../testdata/golabels")
	build.Env = append(os.Environ(), "GO111MODULE=off", "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	peer := startPeer(t)
	c := pipeline{
		extensions: []string{"hot_units:"},
		receiver:   "{}",
		trigger: fmt.Sprintf(`
    pre_trigger: 0
    policies:
      - name: cpu
        match: {cgroup: %q}
        any_of: [{monitor: cpu_usage, threshold: 0.1, average_over: 8s}]
        duration: 20s
        cooldown: 1h`, ofThisTest(t)),
		exporters: []string{peer.exporter()},
	}.start(t, freePort(t))
	g := newCgroup(t, "golabels")
	g.SetQuota(t, 2*cores)
	cmd := g.Command(program, "1s", "2", "do")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	defer stdin.Close()
	startLoad(t, cmd, "e2e-golabels")
	c.wait(startTimeout, "gate closed", nil)
	c.stop()
	peer.stop()
	var all, linked int
	for _, profile := range flatten(readProfiles(t, peer.grpcFile)) {
		if profile.service() != "e2e-golabels" || profile.sampleType != "samples" {
			continue
		}
		for _, s := range profile.samples {
			all += s.events
			route, _ := s.attributes["http.route"].(string)
			require.Equal(t, s.linked, strings.HasPrefix(route, "/route/"), "%v", s)
			require.NotContains(t, s.attributes, "other")
			if s.linked {
				linked += s.events
			}
		}
	}
	t.Logf("%d samples, %d linked", all, linked)
	require.Greater(t, all, 300)
	// Only a part of the samples has labels, because labels are not read before the gate
	// opens. On a busy machine, some labels also cannot be proven to belong to the sample.
	require.GreaterOrEqual(t, linked*100, all*20)
}
