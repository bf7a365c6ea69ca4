// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

const patience = 30 * time.Second

// finding is a perftargets.Finder that returns a Finding and an error set by the test.
type finding struct {
	mu sync.Mutex
	perftargets.Finding
	err error
}

func (f *finding) Find(context.Context, bool) (perftargets.Finding, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Finding, f.err
}

func (f *finding) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *finding) set(to perftargets.Finding) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Finding = to
}

// own returns a Finding with the test process.
func own() perftargets.Finding {
	pid := os.Getpid()
	return perftargets.Finding{
		Wanted: perftargets.Wanted{Processes: []processes.Match{{Process: procfs.Process{PID: pid, Start: 1}, Threads: 1}}},
	}
}

// statuses collects the errors that were passed to Status.
type statuses struct {
	mu  sync.Mutex
	all []error
}

func (s *statuses) tell(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, err)
}

func (s *statuses) get() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]error(nil), s.all...)
}

func newTestSampler(f perftargets.Finder, change func(*Settings)) (*Sampler, *statuses, *observer.ObservedLogs) {
	core, logs := observer.New(zap.InfoLevel)
	st := new(statuses)
	cfg := Settings{
		Config: perftargets.Config{
			Finder: f, Table: processes.NewTable(processes.Config{}), MaxEvents: 4096, DiscoveryInterval: 5 * time.Millisecond,
			Logger: zap.New(core), Now: func() int64 { return time.Now().UnixNano() - perfevent.ClockOffset() },
			Probe: perfevent.Probe, Missing: perftargets.NewMissing(zap.New(core), 5*time.Millisecond),
			Stacks: unwind.NewStacks(unwind.StacksConfig{}),
		},
		Sink: discard{}, Frequency: 97, Status: st.tell, Notes: func(perfevent.Rights) []string { return nil },
	}
	if change != nil {
		change(&cfg)
	}
	return New(cfg), st, logs
}

// discard is a sink that accepts and drops all samples.
type discard struct{}

func (discard) AddValue(samples.Key, int64, int64) bool { return true }
func (discard) ReadUpTo(int64)                          {}
func (discard) KernelLost(*samples.Type, uint64)        {}
func (discard) Paused() bool                            { return false }
func (discard) Batch() uint64                           { return 1 }

func skipWithoutRights(t *testing.T) {
	t.Helper()
	if err := perfevent.Probe().Own; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
}

func TestNothingPermittedIsAStatusUntilItIs(t *testing.T) {
	skipWithoutRights(t)
	refused := &perfevent.RightsError{What: "sampling", Needed: []string{"CAP_PERFMON"}, Err: os.ErrPermission}
	var mu sync.Mutex
	rights := perfevent.Rights{Own: refused, HostWide: refused, Kernel: refused}
	s, st, logs := newTestSampler(&finding{Finding: own()}, func(c *Settings) {
		c.Probe = func() perfevent.Rights {
			mu.Lock()
			defer mu.Unlock()
			return rights
		}
	})
	require.NoError(t, s.Start(t.Context()))
	defer func() { require.NoError(t, s.Stop(t.Context())) }()
	require.Eventually(t, func() bool { return len(st.get()) == 1 }, patience, time.Millisecond)
	require.ErrorIs(t, st.get()[0], os.ErrPermission)
	require.ErrorContains(t, st.get()[0], "CAP_PERFMON")
	require.ErrorContains(t, st.get()[0], "retried every 5ms")
	require.Zero(t, s.Targets())
	require.Zero(t, logs.FilterMessage("sampling started").Len())

	mu.Lock()
	rights = perfevent.Rights{HostWide: refused, Kernel: refused}
	mu.Unlock()
	require.Eventually(t, func() bool { return len(st.get()) == 2 && s.Targets() == 1 }, patience, time.Millisecond)
	require.NoError(t, st.get()[1])
	require.Eventually(t, func() bool { return logs.FilterMessage("sampling started").Len() == 1 }, patience, time.Millisecond)
}

func TestTargetsThatAllRefuseAreAStatus(t *testing.T) {
	skipWithoutRights(t)
	s, st, logs := newTestSampler(&finding{Finding: own()}, func(c *Settings) {
		cpus, err := perfevent.OnlineCPUs()
		require.NoError(t, err)
		c.MaxEvents = 2 * len(cpus) // enough for the one thread that was found, but the process has more threads
		c.Probe = func() perfevent.Rights { return perfevent.Rights{HostWide: os.ErrPermission} }
	})
	require.NoError(t, s.Start(t.Context()))
	defer func() { require.NoError(t, s.Stop(t.Context())) }()
	require.Eventually(t, func() bool { return len(st.get()) == 1 }, patience, time.Millisecond)
	require.ErrorContains(t, st.get()[0], "nothing can be sampled")
	require.ErrorContains(t, st.get()[0], "process "+strconv.Itoa(os.Getpid()))
	require.Zero(t, s.Targets())
	require.Zero(t, logs.FilterMessage("sampling started").Len())
}

func TestFailureToLookForTargetsKeepsWhatIsSampled(t *testing.T) {
	skipWithoutRights(t)
	f := &finding{Finding: own()}
	s, st, logs := newTestSampler(f, nil)
	require.NoError(t, s.Start(t.Context()))
	defer func() { require.NoError(t, s.Stop(t.Context())) }()
	require.Eventually(t, func() bool { return s.Targets() == 1 }, patience, time.Millisecond)
	f.fail(errors.New("too many open files"))
	said := func() int { return logs.FilterMessageSnippet("looking for targets failed").Len() }
	require.Eventually(t, func() bool { return said() == 1 }, patience, time.Millisecond)
	f.fail(nil)
	f.set(perftargets.Finding{Missing: []string{"executable /opt/app"}, Wanted: own().Wanted})
	require.Eventually(t, func() bool { return logs.FilterMessageSnippet("target not found").Len() == 1 }, patience, time.Millisecond)
	require.Equal(t, 1, said(), "not at each discovery")
	for _, err := range st.get() {
		require.NoError(t, err)
	}
}

func TestUserWithoutOtherProcessesIsNotAnError(t *testing.T) {
	refused := &perfevent.RightsError{What: "sampling the whole host", Needed: []string{"CAP_PERFMON"}, Err: os.ErrPermission}
	s, st, logs := newTestSampler(&finding{Finding: perftargets.Finding{Wanted: perftargets.Wanted{Host: true}}}, func(c *Settings) {
		c.Probe = func() perfevent.Rights { return perfevent.Rights{HostWide: refused} }
	})
	require.NoError(t, s.Start(t.Context()))
	started := func() int { return logs.FilterMessage("sampling started").Len() }
	require.Eventually(t, func() bool { return started() == 1 }, patience, time.Millisecond)
	require.NoError(t, s.Stop(t.Context()))
	for _, err := range st.get() {
		require.NoError(t, err)
	}
	line := logs.FilterMessage("sampling started").All()[0]
	require.Equal(t, zap.WarnLevel, line.Level, "less is sampled than configured")
	fields := line.ContextMap()
	require.Contains(t, fields["why"], "CAP_PERFMON")
	require.Contains(t, fields["what"], "processes of this user")
	require.Contains(t, fields["not_sampled"].([]any)[0], "CAP_PERFMON")
}

func TestRequiredKernelStacksThatAreNotPermittedAreAnError(t *testing.T) {
	refused := &perfevent.RightsError{What: "sampling the kernel", Needed: []string{"CAP_PERFMON"}, Err: os.ErrPermission}
	s, _, _ := newTestSampler(&finding{}, func(c *Settings) {
		c.Kernel = perftargets.KernelDemanded
		c.Probe = func() perfevent.Rights { return perfevent.Rights{Kernel: refused} }
	})
	err := s.Start(t.Context())
	require.ErrorIs(t, err, os.ErrPermission)
	require.ErrorContains(t, err, "kernel_stacks")
	require.NoError(t, s.Stop(t.Context()))
}

func TestStopWithoutStart(t *testing.T) {
	s, _, _ := newTestSampler(&finding{}, nil)
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, s.Stop(t.Context()))
}
