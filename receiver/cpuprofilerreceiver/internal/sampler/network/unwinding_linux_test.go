// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/symbolizer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestStacksWithoutFramePointersAreWhole covers a C program without frame pointers. On
// most hosts, the C library has no frame pointers either. The stacks must be copied and
// must contain the program's functions.
func TestStacksWithoutFramePointersAreWhole(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "sender")
	out, err := exec.Command(hosttest.Tool(t, "gcc"), "-O2", "-fomit-frame-pointer", "-o", binary, "testdata/sender.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	symbols := symbolizer.New(symbolizer.Config{})
	defer symbols.Close()
	cache := unwind.NewCache(unwind.Config{
		Open: func(c *stuckread.Call, m *samples.Mapping) (*os.File, mappedfile.ID, error) {
			return mappedfile.Open(c, "/", m)
		},
		VDSO: mappedfile.VDSO,
	})
	defer cache.Close()
	core, said := observer.New(zap.InfoLevel)
	r := start(t, func(cfg *Settings) {
		cfg.Table = processes.NewTable(processes.Config{Track: symbols.Track})
		cfg.Stacks = unwind.NewStacks(unwind.StacksConfig{Mode: unwind.CopiesWhereNeeded, Bytes: 4096, Tables: cache, Logger: zap.New(core)})
	})
	r.without()
	values := make(map[string]int64)
	whole := 0
	p := run(t, func(string, ...string) *exec.Cmd { return exec.Command(binary) })
	r.to.mu.Lock()
	r.to.each = func(k samples.Key, value int64) {
		if k.Type != samples.NetSent {
			return
		}
		if k.Stack.Whole {
			whole++
		}
		var names []string
		symbols.Begin(nil)
		for _, l := range k.Stack.Locations {
			if !l.Resolved {
				symbols.Resolve(p.Process.Pid, l)
			}
			for _, line := range l.Lines {
				names = append(names, line.Function)
			}
		}
		for _, name := range []string{"send_three_parts", "send_one_part"} {
			if slices.Contains(names, name) && slices.Contains(names, "main") {
				values[name] += value
			}
		}
	}
	r.to.mu.Unlock()
	r.attach(process(p.Process.Pid))
	r.eventually("copies", func() bool { return said.FilterMessageSnippet("stacks are copied").Len() == 1 })
	r.eventually("attached anew", func() bool {
		return r.logs.FilterMessage("network targets").Len() >= 2 && r.Targets() == 1
	})
	r.everyCall()
	known := processes.NewTable(processes.Config{}).Lookup(p.Process.Pid, 0)
	r.eventually("tables", func() bool {
		return !slices.ContainsFunc(known.Mapped(), func(m *samples.Mapping) bool {
			_, ready := cache.Lookup(m)
			return !ready
		})
	})
	const rounds = 100
	var sent int64
	_, err = fmt.Fprintln(p.in, rounds)
	require.NoError(t, err)
	_, err = fmt.Fscan(p.out, &sent)
	require.NoError(t, err)
	require.EqualValues(t, rounds*4*100, sent)
	r.read()
	r.stop()
	require.Equal(t, map[string]int64{"send_three_parts": 3 * sent / 4, "send_one_part": sent / 4}, values)
	require.Equal(t, 4*rounds, whole)
}
