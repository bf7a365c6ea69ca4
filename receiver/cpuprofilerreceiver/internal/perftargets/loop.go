// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package perftargets attaches perf events to the current processes and cgroups of the
// configured targets.
//
// A Loop has two goroutines. The first goroutine finds the targets every discovery
// interval, which reads much of /proc, and sends the result to the second goroutine. The
// second goroutine attaches events and calls a Reader, which reads the kernel's records.
// All code of the second goroutine is single-threaded. The Reader contains the code that
// differs between samplers, and the Loop contains the common code.
package perftargets

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/internal/token"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/golabels"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/languages"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// Config configures a Loop.
type Config struct {
	// Type is the sampler's type of samples.
	Type   *samples.Type
	Finder Finder
	// Changed triggers a search at once, in addition to the search at every
	// DiscoveryInterval. It may be nil.
	Changed <-chan struct{}
	// Unwatch stops the notifications on Changed. It may be nil.
	Unwatch           func()
	DiscoveryInterval time.Duration
	// Missing logs missing targets. It is nil if another sampler logs them.
	Missing *Missing
	// Table contains the processes. Only the reading goroutine uses it.
	Table *processes.Table
	// MaxEvents is the maximum number of perf event descriptors.
	MaxEvents int
	Kernel    KernelStacks
	// Stacks unwinds the stacks of samples. Only the reading goroutine uses it.
	Stacks *unwind.Stacks
	// Languages walks interpreted frames, and is nil if these frames are not walked.
	// Labels finds the labels of goroutines, and is nil if samples get no labels. If
	// Languages or Labels is set, Runner watches the reading goroutine, because reading
	// the memory of a process may block.
	Languages *languages.Walker
	Labels    *golabels.Labels
	Runner    *stuckread.Runner
	// ThreadName and ThreadID select the attributes that distinguish threads.
	ThreadName, ThreadID bool
	// Refused returns the reason why sampling is not permitted. It returns nil if sampling
	// is permitted.
	Refused func(perfevent.Rights) error
	// Switches reports whether the sampler samples context switches.
	Switches bool
	// Tracepoints is the number of tracepoint events per target and CPU. Everywhere is the
	// number of additional events per CPU. Tracepoints and Everywhere are 0 if the sampler
	// uses no tracepoints.
	Tracepoints, Everywhere int
	// Lost returns the number of lost events from the kernel's counters.
	Lost func(perfevent.Stats) uint64
	// When is a text for log lines. It describes the value of the key when, and the
	// reason for this value. It is empty for a sampler without this key.
	When   string
	Logger *zap.Logger
	// Now returns CLOCK_MONOTONIC in nanoseconds.
	Now func() int64
	// Probe determines the rights of the collector. It is perfevent.Probe except in tests.
	Probe func() perfevent.Rights
}

// Reader is the part of a session that differs between samplers. Only the Loop's reading
// goroutine calls it.
type Reader interface {
	// Options returns the session options for f. The Loop then sets SplitSwitches, CPUs,
	// HostWide and MaxDescriptors.
	Options(f *Found) perfevent.Options
	// Begin is called with each newly opened session. It clears the state of the previous
	// session.
	Begin(session *perfevent.Session)
	// Attached is called after f was attached. gone lists the attachments that were
	// detached.
	Attached(f *Found, gone []*perfevent.Attachment)
	// Turn waits for records and reads them. If it returns an error, the session ends.
	Turn(ctx context.Context, session *perfevent.Session) error
	// End reads the remaining records before the session is closed.
	End(session *perfevent.Session)
	// Report logs which targets are sampled, which are not, and why.
	Report(f *Found)
}

// Loop samples the targets that a Finder finds. It contains the code that all Readers
// need for following processes, counting losses, pausing and reporting. Only the reading
// goroutine calls its methods, except where a method is documented as safe for
// concurrent use.
type Loop struct {
	cfg    Config
	sink   Sink
	reader Reader

	// found is the result of the last search. It is nil once the reading goroutine has
	// taken it.
	found  atomic.Pointer[Found]
	cancel context.CancelFunc
	done   sync.WaitGroup

	// session is nil while sampling is off. The reading goroutine owns it, but other
	// goroutines may wake it.
	session atomic.Pointer[perfevent.Session]
	// wake wakes a reader without a session.
	wake    chan struct{}
	targets atomic.Int64

	// Only the reading goroutine uses the fields below.

	attached *attachments
	// before is the capture for samples that precede the last change of the period. Such
	// samples have no attachment.
	before  *samples.Capture
	options perfevent.Options // options of the session
	last    Found             // result of the last search that did not fail
	losses  *Losses
	batch   uint64 // number of batches when the table was last notified
	failure string // last logged failure of a search
	leftOut string // last logged targets that were left out
	refused string // last logged reason why sampling is impossible
	started bool   // the start of sampling was reported
	soon    bool   // programs are being started, so Turn reads again soon
}

// NewLoop returns a Loop that has not started.
func NewLoop(cfg Config, sink Sink, reader Reader) *Loop {
	return &Loop{
		cfg: cfg, sink: sink, reader: reader, attached: newAttachments(cfg.Now), losses: NewLosses(cfg.Logger, cfg.Type, cfg.Lost, sink),
		wake: make(chan struct{}, 1),
	}
}

// Start starts the loop with the current rights. A missing right is logged and checked
// again later. A missing right is not an error, because other samplers continue.
func (l *Loop) Start(context.Context) error {
	l.Begin(l.cfg.Probe())
	return nil
}

// Begin starts the loop's goroutines with the given rights.
func (l *Loop) Begin(rights perfevent.Rights) {
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	l.done.Go(func() { l.discover(ctx, rights) })
	l.done.Go(func() {
		if l.cfg.Languages == nil && l.cfg.Labels == nil {
			l.read(ctx)
		} else {
			for l.cfg.Runner.Take(stuckread.ReadLimit, func(c *stuckread.Call) {
				l.cfg.Languages.Begin(c)
				l.cfg.Labels.Take(c)
				l.read(ctx)
			}) != nil { // a process's memory does not answer, so another goroutine takes over
			}
		}
		l.close()
	})
}

// Stop reads the rings one last time, ends sampling, and waits for the loop's goroutines.
func (l *Loop) Stop(context.Context) error {
	if l.cfg.Unwatch != nil {
		l.cfg.Unwatch()
	}
	if l.cancel != nil {
		l.cancel()
		l.Wake()
		l.done.Wait()
	}
	return nil
}

// Wake makes the reader check for work at once.
func (l *Loop) Wake() {
	token.Put(l.wake)
	if session := l.session.Load(); session != nil {
		session.Wake()
	}
}

// Woken receives a token from Wake.
func (l *Loop) Woken() <-chan struct{} { return l.wake }

// Targets returns the number of attached targets. It is safe for concurrent use.
func (l *Loop) Targets() int { return int(l.targets.Load()) }

// Current returns the options of the session, for the Reader.
func (l *Loop) Current() *perfevent.Options { return &l.options }

// Last returns the result of the last successful search, for the Reader.
func (l *Loop) Last() *Found { return &l.last }

// discover searches for targets at each discovery interval or change, until ctx is done.
// While a right is missing, it probes the rights again before each further search.
func (l *Loop) discover(ctx context.Context, rights perfevent.Rights) {
	tick := time.NewTicker(l.cfg.DiscoveryInterval)
	defer tick.Stop()
	for {
		f := l.find(ctx, rights)
		if ctx.Err() != nil {
			return
		}
		l.found.Store(&f)
		l.Wake()
		select {
		case <-tick.C:
		case <-l.cfg.Changed:
		case <-ctx.Done():
			return
		}
		if rights.Own != nil || rights.HostWide != nil || rights.Kernel != nil {
			rights = l.cfg.Probe()
		}
	}
}

// find searches for targets and plans how to sample them.
func (l *Loop) find(ctx context.Context, rights perfevent.Rights) Found {
	f := Found{Rights: rights}
	if f.Err = l.cfg.Refused(rights); f.Err != nil {
		return f
	}
	cpus, err := perfevent.OnlineCPUs()
	if err == nil {
		f.Finding, err = l.cfg.Finder.Find(ctx, rights.HostWide == nil)
	}
	if err != nil {
		f.Err, f.failed = err, true
		return f
	}
	l.cfg.Missing.Report(f.Missing)
	f.Plan = newPlan(f.Wanted, limits{
		CPUs:      cpus,
		MaxEvents: l.cfg.MaxEvents,
		OpenFiles: procfs.OpenFileLimit(),
		HostWide:  rights.HostWide,
		Switches:  l.cfg.Switches,

		Tracepoints: l.cfg.Tracepoints, Everywhere: l.cfg.Everywhere,
		NoThreads: l.cfg.Tracepoints > 0 && !perfevent.CountsHitsOfThreads(),
	})
	// The user's own processes can be sampled, even if none of them runs now.
	instead := f.Wanted.Host && rights.Own == nil
	if f.Plan.Mode == ModeNone && len(f.Plan.LeftOut) > 0 && !instead {
		f.Err = rights.HostWide
	}
	return f
}

// read attaches events and reads records until ctx is done.
func (l *Loop) read(ctx context.Context) {
	for ctx.Err() == nil {
		if f := l.found.Swap(nil); f != nil {
			l.apply(*f)
		}
		session := l.session.Load()
		if session == nil {
			l.sink.ReadUpTo(buffer.Idle)
			select {
			case <-l.wake:
			case <-ctx.Done():
			}
			continue
		}
		if err := l.reader.Turn(ctx, session); err != nil {
			l.cfg.Logger.Error("reading perf events failed; sampling stops until the next search for targets",
				zap.String("sampler", l.cfg.Type.Sampler), zap.Error(err))
			l.close()
		}
	}
}

// Reapply attaches the targets of the last search again if the Reader's options for these
// targets have changed.
func (l *Loop) Reapply() {
	if l.session.Load() != nil && !same(l.optionsFor(&l.last), l.options) {
		l.apply(l.last)
	}
}

func (l *Loop) optionsFor(f *Found) perfevent.Options {
	o := l.reader.Options(f)
	o.SplitSwitches = f.Plan.Wide() || o.UserStack > 0
	o.CPUs, o.HostWide, o.MaxDescriptors = f.Plan.CPUs, f.Plan.HostWide, l.cfg.MaxEvents
	return o
}

// apply attaches and detaches events to match the found targets.
func (l *Loop) apply(f Found) {
	session := l.session.Load()
	if f.failed && session != nil {
		// The targets are unknown, so the attachments stay. The same failure is not logged
		// twice in a row.
		if text := f.Err.Error(); text != l.failure {
			l.failure = text
			l.cfg.Logger.Warn("looking for targets failed; what is sampled stays as it is", zap.String("sampler", l.cfg.Type.Sampler),
				zap.Error(f.Err), zap.Duration("retry_interval", l.cfg.DiscoveryInterval))
		}
		return
	}
	l.failure = "" // so that the next failure is logged
	if !f.failed {
		l.last = f
	}
	options := l.optionsFor(&f)
	if session != nil && (f.Plan.Mode == ModeNone || !same(options, l.options) || session.Stale(f.Plan.CPUs)) {
		l.close()
		session = nil
	}
	if f.Plan.Mode == ModeNone {
		l.reader.Report(&f)
		return
	}
	if session == nil {
		opened, err := perfevent.Open(options)
		if err != nil {
			f.Plan.LeftOut = append(f.Plan.LeftOut, LeftOut{What: "everything", Reason: err.Error()})
			f.Err = err
			l.reader.Report(&f)
			return
		}
		session = opened
		l.options = options
		l.sink.ReadUpTo(l.cfg.Now())
		l.cfg.Table.AfterLoss() // earlier events were not recorded
		l.reader.Begin(session)
		l.session.Store(session)
	}
	gone, refused, err := l.attached.apply(session, f.Plan)
	if err != nil {
		l.cfg.Logger.Debug("detaching perf events failed", zap.String("sampler", l.cfg.Type.Sampler), zap.Error(err))
	}
	l.reader.Attached(&f, gone)
	f.Plan.LeftOut = append(f.Plan.LeftOut, refused...)
	attached := len(l.attached.targets)
	if attached == 0 {
		l.close()
		if len(refused) > 0 {
			f.Err = errors.New(refused[0].Reason)
		}
	}
	l.targets.Store(int64(attached))
	l.reader.Report(&f)
}

// same reports whether a session with the options a can be kept if the wanted
// options are b.
func same(a, b perfevent.Options) bool {
	return slices.Equal(a.CPUs, b.CPUs) && a.Period == b.Period && a.Switches == b.Switches && a.Kernel == b.Kernel &&
		a.UserStack == b.UserStack && a.HostWide == b.HostWide && a.SplitSwitches == b.SplitSwitches && a.MaxDescriptors == b.MaxDescriptors &&
		slices.Equal(a.Tracepoints, b.Tracepoints)
}

// close ends the session.
func (l *Loop) close() {
	session := l.session.Load()
	if session == nil {
		return
	}
	l.reader.End(session)
	l.cfg.Table.GiveUp()
	l.losses.End()
	l.session.Store(nil)
	l.attached.end()
	l.attached = newAttachments(l.cfg.Now)
	l.targets.Store(0)
	if err := session.Close(); err != nil {
		l.cfg.Logger.Debug("closing perf events failed", zap.String("sampler", l.cfg.Type.Sampler), zap.Error(err))
	}
}

// Finder finds the processes and cgroups to sample.
type Finder interface {
	// Find returns the targets to sample. If hostWide is true, CPU-wide events are
	// permitted. Otherwise Find returns single processes instead of the whole host.
	Find(ctx context.Context, hostWide bool) (Finding, error)
}

// Finding lists the targets at one moment.
type Finding struct {
	Wanted Wanted
	// Missing lists the configured targets that match no process or cgroup.
	Missing []string
	// Only reports whether a process is a target. This check is needed for events that
	// also record other processes. Only may be nil.
	Only func(pid int, cgroup string) bool
}

// Found is a Finding with the plan for sampling it.
type Found struct {
	Finding
	Rights perfevent.Rights
	Plan   Plan
	// Err is the reason why sampling is impossible, or nil if sampling is possible.
	Err error

	// failed is true if the search failed, so that the targets are unknown.
	failed bool
}

// What describes the sampled targets for the log.
func (f *Found) What() string {
	p := f.Plan
	cpus := fmt.Sprintf("%d CPUs", len(p.CPUs))
	switch p.Mode {
	case ModeHost:
		if f.Rights.ForeignPIDNamespace {
			return "all processes of the collector's own pid namespace, " + cpus
		}
		return "the whole host, " + cpus
	case ModeFilter:
		return "the targets, by events on all of " + cpus
	case ModeTargets:
		if f.Wanted.Host {
			return fmt.Sprintf("all processes of this user, since the whole host is not permitted; %d now, on %s", len(p.Processes), cpus)
		}
		return fmt.Sprintf("%d cgroups and %d processes, on %s", len(p.Cgroups), len(p.Processes), cpus)
	}
	if f.Wanted.Host {
		return "all processes of this user, since the whole host is not permitted; none now"
	}
	return "nothing yet"
}
