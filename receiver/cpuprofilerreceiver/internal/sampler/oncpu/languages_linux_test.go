// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/interpreter"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/languages"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// forged is a driver that treats every program as Python.
type forged struct{}

func (forged) Knows(string) bool { return true }

func (forged) Attach(interpreter.Process) (interpreter.Layout, error) {
	return interpreter.Layout{Python: &interpreter.Python{Minor: 12, ThreadID: 720}}, nil
}

func (forged) ThreadContext(interpreter.Process) (uint64, error) { return 0, nil }

// TestSamplingGoesOnWithoutMemoryThatDoesNotAnswer checks that only the samples of a short
// time are lost if reading the memory of a process blocks.
func TestSamplingGoesOnWithoutMemoryThatDoesNotAnswer(t *testing.T) {
	skipWithoutRights(t)
	release := make(chan struct{})
	runner := stuckread.New(zap.NewNop(), nil, nil)
	sink := new(tally)
	var reads atomic.Int64
	s, _, _ := newTestSampler(&finding{Finding: withoutFramePointers(t)}, func(c *Settings) {
		c.Frequency, c.Sink, c.Runner = 997, sink, runner
		c.Stacks = unwind.NewStacks(unwind.StacksConfig{Mode: unwind.Copies, Bytes: 1024, Tables: tables(t)})
		c.Languages = languages.NewWalker(languages.Config{
			Languages: []string{languages.Python}, Driver: forged{}, Access: mappedfile.Access{Runner: runner}, Logger: zap.NewNop(), Now: c.Now,
			Hot:  func() func(*processes.Process) bool { return func(*processes.Process) bool { return true } },
			Open: func(*samples.Mapping) (*os.File, error) { return nil, os.ErrNotExist },
			Read: func(int, uint64, []byte) int { reads.Add(1); <-release; return 0 },
		})
	})
	require.NoError(t, s.Start(t.Context()))
	defer func() { require.NoError(t, s.Stop(t.Context())) }()
	require.Eventually(t, func() bool { return runner.Stats().Late == 1 }, patience, 10*time.Millisecond, "its memory is read")
	sink.forget()
	require.Eventually(t, func() bool { whole, other, _ := sink.get(); return whole+other >= 100 }, patience, 10*time.Millisecond)
	require.EqualValues(t, 1, reads.Load(), "it is given up")
	close(release)
	require.Eventually(t, func() bool { return runner.Stats().Stuck == 0 }, patience, 10*time.Millisecond)
}
