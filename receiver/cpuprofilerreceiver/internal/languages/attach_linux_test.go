// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/interpreter"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
)

// strangeDriver recognizes every file, but finds no layout.
type strangeDriver struct{ err error }

func (*strangeDriver) Knows(string) bool { return true }

func (d *strangeDriver) Attach(interpreter.Process) (interpreter.Layout, error) {
	return interpreter.Layout{}, d.err
}

func (d *strangeDriver) ThreadContext(interpreter.Process) (uint64, error) { return 0, d.err }

// TestUnknownLayoutIsLoggedOnce checks that repeated searches in a process log the same
// reason only once. A new reason must be logged.
func TestUnknownLayoutIsLoggedOnce(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	now := int64(time.Hour)
	driver := &strangeDriver{err: errors.New("unknown version")}
	w := NewWalker(Config{
		Languages: []string{Python}, Driver: driver, Logger: zap.New(core), Now: func() int64 { return now },
		Hot:    func() func(*processes.Process) bool { return func(*processes.Process) bool { return true } },
		Access: mappedfile.Access{Runner: stuckread.New(zap.NewNop(), nil, nil), Meter: new(cputime.Meter), Budget: cputime.NewBudget(1, zap.NewNop(), time.Now)},
	})
	of := processes.NewTable(processes.Config{}).Lookup(os.Getpid(), 0)
	search := func() {
		now += int64(2 * retryInterval)
		w.Enter(of)
		for p := w.processes[of.PID]; p.found != nil; w.Enter(of) {
			time.Sleep(time.Millisecond)
			now += int64(time.Millisecond)
		}
	}
	search()
	search()
	require.Equal(t, 1, logs.Len())
	driver.err = errors.New("another reason")
	search()
	require.Equal(t, 2, logs.Len())
}
