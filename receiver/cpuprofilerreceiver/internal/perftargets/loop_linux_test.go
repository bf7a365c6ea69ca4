// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perftargets

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

const patience = 20 * time.Second

// finding is a Finder that returns a Finding and an error set by the test.
type finding struct {
	mu  sync.Mutex
	of  Finding
	err error
}

func (f *finding) Find(context.Context, bool) (Finding, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.of, f.err
}

func (f *finding) set(of Finding, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.of, f.err = of, err
}

// own returns a Finding with the test process and the given start time.
func own(start uint64) Finding {
	pid := os.Getpid()
	return Finding{
		Wanted: Wanted{Processes: []processes.Match{{Process: procfs.Process{PID: pid, Start: start}, Threads: 1}}},
	}
}

// journal is a Reader that counts the events of sessions.
type journal struct {
	mu      sync.Mutex
	options perfevent.Options
	entries map[string]int
	turn    error
}

func (j *journal) note(what string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.entries == nil {
		j.entries = make(map[string]int)
	}
	j.entries[what]++
}

func (j *journal) count(what string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.entries[what]
}

func (j *journal) Options(*Found) perfevent.Options {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.options
}

func (j *journal) Begin(*perfevent.Session) { j.note("begin") }

func (j *journal) Attached(_ *Found, gone []*perfevent.Attachment) {
	j.note("attached")
	for range gone {
		j.note("gone")
	}
}

func (j *journal) Turn(_ context.Context, session *perfevent.Session) error {
	j.mu.Lock()
	err := j.turn
	j.turn = nil
	j.mu.Unlock()
	if err != nil {
		return err
	}
	return session.Wait(time.Second)
}

func (j *journal) End(*perfevent.Session) { j.note("end") }

func (j *journal) Report(f *Found) {
	if f.Err != nil {
		j.note("refused")
		return
	}
	j.note("report")
}

func newTestLoop(f Finder, j *journal) *Loop {
	return NewLoop(Config{
		Type: samples.OnCPU, Table: processes.NewTable(processes.Config{}),
		Finder: f, DiscoveryInterval: time.Millisecond, MaxEvents: 4096,
		Logger: zap.New(logged{zapcore.NewNopCore(), j}), Now: func() int64 { return 0 },
		Refused: func(r perfevent.Rights) error { return r.Own },
		Probe:   func() perfevent.Rights { return perfevent.Rights{HostWide: errNotWide} },
	}, noSink{}, j)
}

// logged adds the log messages to a journal.
type logged struct {
	zapcore.Core
	to *journal
}

func (l logged) Enabled(zapcore.Level) bool { return true }

func (l logged) Check(e zapcore.Entry, _ *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	l.to.note(e.Message)
	return nil
}

// noSink is a sink that ignores all calls.
type noSink struct{}

func (noSink) AddValue(samples.Key, int64, int64) bool { return true }
func (noSink) ReadUpTo(int64)                          {}
func (noSink) KernelLost(*samples.Type, uint64)        {}
func (noSink) Paused() bool                            { return false }
func (noSink) Batch() uint64                           { return 1 }

var errNotWide = errors.New("not host-wide")

func skipWithoutRights(t *testing.T) {
	t.Helper()
	if err := perfevent.Probe().Own; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
}

func eventually(t *testing.T, is func() bool) {
	t.Helper()
	require.Eventually(t, is, patience, time.Millisecond)
}

func TestSessionLastsAsLongAsThereAreTargets(t *testing.T) {
	skipWithoutRights(t)
	f, j := &finding{of: own(1)}, new(journal)
	l := newTestLoop(f, j)
	l.Begin(perfevent.Rights{HostWide: errNotWide})
	defer func() { require.NoError(t, l.Stop(context.Background())) }()
	eventually(t, func() bool { return j.count("report") >= 2 })
	require.Equal(t, 1, l.Targets())

	const failed = "looking for targets failed; what is sampled stays as it is"
	f.set(own(1), errors.New("too many open files"))
	eventually(t, func() bool { return j.count(failed) == 1 })
	f.set(own(1), errors.New("out of memory"))
	eventually(t, func() bool { return j.count(failed) == 2 })
	time.Sleep(10 * time.Millisecond) // the time of several searches
	require.Equal(t, 2, j.count(failed), "each failure once")
	require.Equal(t, 1, l.Targets(), "what is attached stays")
	require.Equal(t, 1, j.count("begin"))
	require.Zero(t, j.count("gone")+j.count("end"))

	f.set(own(2), nil) // the same pid with a later start time
	eventually(t, func() bool { return j.count("gone") == 1 })
	require.Equal(t, 1, j.count("begin"), "the same session")

	f.set(Finding{}, nil)
	eventually(t, func() bool { return j.count("end") == 1 && l.Targets() == 0 })
	f.set(own(2), nil)
	eventually(t, func() bool { return j.count("begin") == 2 && l.Targets() == 1 })
	_ = l.Stop(context.Background())
	require.Equal(t, 2, j.count("end"))
	require.Zero(t, l.Targets())
}

func TestOtherOptionsAreAnotherSession(t *testing.T) {
	skipWithoutRights(t)
	j := new(journal)
	l := newTestLoop(&finding{of: own(1)}, j)
	l.Begin(perfevent.Rights{HostWide: errNotWide})
	defer func() { require.NoError(t, l.Stop(context.Background())) }()
	eventually(t, func() bool { return l.Targets() == 1 })
	j.mu.Lock()
	j.options.UserStack = 1024
	j.mu.Unlock()
	eventually(t, func() bool { return j.count("begin") == 2 && l.Targets() == 1 })
	require.Equal(t, 1, j.count("end"))
}

func TestSessionThatCannotBeReadIsOpenedAnew(t *testing.T) {
	skipWithoutRights(t)
	j := &journal{turn: errors.New("bad file descriptor")}
	l := newTestLoop(&finding{of: own(1)}, j)
	l.Begin(perfevent.Rights{HostWide: errNotWide})
	defer func() { require.NoError(t, l.Stop(context.Background())) }()
	eventually(t, func() bool { return j.count("begin") == 2 && l.Targets() == 1 })
}

func TestNothingIsAttachedWithoutRights(t *testing.T) {
	j := new(journal)
	l := newTestLoop(&finding{of: own(1)}, j)
	refused, later := perfevent.Rights{Own: os.ErrPermission, HostWide: errNotWide}, l.cfg.Probe
	l.cfg.Probe = func() perfevent.Rights {
		if j.count("refused") == 0 {
			return refused
		}
		return later()
	}
	l.Begin(refused)
	defer func() { require.NoError(t, l.Stop(context.Background())) }()
	eventually(t, func() bool { return j.count("refused") >= 1 })
	skipWithoutRights(t)
	eventually(t, func() bool { return l.Targets() == 1 }) // the rights are probed again
}

func TestProcessThatWasReplacedIsAttachedAnew(t *testing.T) {
	skipWithoutRights(t)
	f := new(finding)
	l := newTestLoop(f, new(journal))
	a := newAttachments(l.cfg.Now)
	session, err := perfevent.Open(perfevent.Options{})
	require.NoError(t, err)
	defer session.Close()
	apply := func(start uint64) (gone int) {
		f.set(own(start), nil)
		found := l.find(t.Context(), perfevent.Rights{HostWide: errNotWide})
		let, refused, err := a.apply(session, found.Plan)
		require.NoError(t, err)
		require.Empty(t, refused)
		return len(let)
	}
	require.Zero(t, apply(1))
	first, second := target{Process: procfs.Process{PID: os.Getpid(), Start: 1}}, target{Process: procfs.Process{PID: os.Getpid(), Start: 2}}
	one := a.targets[first].Attachment
	require.NotNil(t, one)
	require.Zero(t, apply(1))
	require.Same(t, one, a.targets[first].Attachment)
	require.Equal(t, 1, apply(2))
	require.NotContains(t, a.targets, first)
	require.NotNil(t, a.targets[second].Attachment)
}

func TestMissingTargetsAreLoggedOnce(t *testing.T) {
	missing := Finding{Missing: []string{"executable /opt/app"}}
	f, j := &finding{of: missing}, new(journal)
	l := newTestLoop(f, j)
	l.cfg.Missing = NewMissing(l.cfg.Logger, l.cfg.DiscoveryInterval)
	l.Begin(perfevent.Rights{HostWide: errNotWide})
	defer func() { require.NoError(t, l.Stop(context.Background())) }()
	const notFound, found = "target not found, searching again", "target found"
	eventually(t, func() bool { return j.count(notFound) == 1 && j.count("report") >= 3 })
	f.set(Finding{}, errors.New("too many open files"))
	eventually(t, func() bool { return j.count("refused") >= 3 })
	require.Zero(t, j.count(found), "nothing is known")
	f.set(Finding{}, nil)
	eventually(t, func() bool { return j.count(found) == 1 })
	require.Equal(t, 1, j.count(notFound), "not at each search")
	f.set(missing, nil)
	eventually(t, func() bool { return j.count(notFound) == 2 })
}

func TestStopWithoutBegin(t *testing.T) {
	l := newTestLoop(new(finding), new(journal))
	_ = l.Stop(context.Background())
	_ = l.Stop(context.Background())
}
