// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package allocs

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/symbolizer"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestStacksThroughC covers allocations in Go functions that were called by C. Frame
// pointers lead from these functions into C code, which runs on another stack. The frame
// pointers lead further only if the C code has frame pointers. A stack that does not
// reach the Go code that called C must be marked as truncated.
func TestStacksThroughC(t *testing.T) {
	skipWithoutProbes(t)
	hosttest.Tool(t, "gcc")
	out := filepath.Join(t.TempDir(), "callbacks")
	cmd := exec.Command("go", "build", "-o", out, "../../../../../test/testdata/callbacks")
	cmd.Env = append(os.Environ(), "GO111MODULE=off", "CGO_ENABLED=1")
	b, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", b)
	a := start(t, out, -1)
	symbols := symbolizer.New(symbolizer.Config{})
	defer symbols.Close()
	s, to, _ := sampling(t, a, func(c *Settings) {
		c.Table = processes.NewTable(processes.Config{Track: symbols.Track})
	})
	a.allocate("all", 0, 1)
	s.Flush()
	objects, _ := to.take()
	all, whole := map[string]int{}, map[string]int{}
	example := map[string][]string{}
	for _, e := range objects {
		resolve(t, symbols, a.PID, e.Stack)
		processes.MarkTruncated(e.Stack)
		names := functions(e.Stack)
		leaf := strings.TrimPrefix(names[0], "main.")
		if leaf != "allocFromC" && leaf != "allocFromThread" {
			continue
		}
		all[leaf]++
		if !e.Stack.Truncated {
			whole[leaf]++
		}
		example[leaf] = names
		if leaf == "allocFromC" && !e.Stack.Truncated {
			require.Contains(t, names, "main.callC", "whole without its callers")
		}
		require.True(t, slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "runtime.cgocallback") }), "%v", names)
	}
	t.Logf("whole: %v of %v\n%v", whole, all, example)
	for _, leaf := range []string{"allocFromC", "allocFromThread"} {
		require.Greater(t, all[leaf], 500, leaf)
	}
}
