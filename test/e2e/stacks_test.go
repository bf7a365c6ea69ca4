// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestStacksAreWholeByDefault runs programs in four languages, in cgroups that the
// receiver's configuration does not name. Only the Go program keeps frame pointers. All
// profiles must have complete stacks, including profiles from before the trigger.
func TestStacksAreWholeByDefault(t *testing.T) {
	t.Parallel()
	compile := func(compiler, source string) string {
		program := filepath.Join(t.TempDir(), "program")
		out, err := exec.Command(hosttest.Tool(t, compiler), "-O2", "-fomit-frame-pointer", "-o", program,
			filepath.Join("testdata", "stacks", source)).CombinedOutput()
		require.NoError(t, err, string(out))
		return program
	}
	programs := map[string]struct {
		command []string
		// callers lists functions of which at least one must be above the leaf in most
		// stacks.
		callers []string
	}{
		"c":      {[]string{compile("gcc", "sorting.c")}, []string{"main"}},
		"c++":    {[]string{compile("g++", "throwing.cc")}, []string{"main"}},
		"python": {[]string{hosttest.Tool(t, "/usr/bin/python3"), "-c", "def add(n): return sum(i * i for i in range(n))\nwhile True: add(10000)"}, []string{"Py_RunMain", "Py_BytesMain"}},
		"go":     {[]string{loadBinary}, []string{"runtime.main", "runtime.goexit"}},
	}
	peer := startPeer(t)
	c := pipeline{
		receiver: "{}",
		trigger: fmt.Sprintf(`
    pre_trigger: 10s
    policies:
      - name: cpu
        match: {cgroup: %q}
        any_of: [{monitor: cpu_usage, threshold: 0.1, average_over: 8s}]
        duration: 5s
        cooldown: 1h`, ofThisTest(t)),
		exporters: []string{peer.exporter()},
	}.start(t, freePort(t))
	for name, p := range programs {
		g := newCgroup(t, name)
		g.SetQuota(t, cores)
		g.RaiseWeight(t)
		startLoad(t, g.Command(p.command[0], p.command[1:]...), "e2e-stacks-"+name)
	}
	opened := map[string]time.Time{}
	for name := range programs {
		of := func(l logLine) bool { return l.str("service") == "e2e-stacks-"+name }
		opened[name] = c.wait(startTimeout, "gate opened", of).at()
		c.wait(startTimeout, "gate closed", of)
	}
	c.stop()
	peer.stop()
	profiles := flatten(readProfiles(t, peer.grpcFile))
	for name, p := range programs {
		var all, before, whole, called int
		for _, profile := range profiles {
			if profile.service() != "e2e-stacks-"+name || profile.sampleType != "samples" {
				continue
			}
			for _, s := range profile.samples {
				all += s.events
				if time.Unix(0, int64(s.times[0])).Before(opened[name].Add(-2 * time.Second)) {
					before += s.events
				}
				if !s.truncated {
					whole += s.events
				}
				if len(s.functions) > 1 && slices.ContainsFunc(p.callers, func(f string) bool { return slices.Contains(s.functions[1:], f) }) {
					called += s.events
				}
			}
		}
		t.Logf("%s: %d samples, %d long before the trigger, %d whole, %d with the expected callers", name, all, before, whole, called)
		require.Greater(t, all, 100, name)
		require.Greater(t, before, 50, name)
		require.GreaterOrEqual(t, whole*100, all*95, name)
		require.GreaterOrEqual(t, called*100, all*90, name)
	}
}
