// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
)

// attached is what the session has its events on.
type attached struct {
	// options are those that the session was opened with.
	options perfevent.Options
	host    *perfevent.Target
	cgroups map[string]attachedCgroup // by directory
	// processes are told apart by their start too: a pid may be another process
	// by the time it is found again.
	processes map[process]*perfevent.Target
}

// attachedCgroup is a cgroup and the directory that it was: one that is removed
// and made again under its name is another cgroup.
type attachedCgroup struct {
	*perfevent.Target
	directory os.FileInfo
}

func (c attachedCgroup) gone(dir string) bool {
	now, err := os.Stat(dir)
	return err != nil || !os.SameFile(now, c.directory)
}

// process is one process, not just a pid.
type process struct {
	pid   int
	start uint64
}

func newAttached() *attached {
	return &attached{
		cgroups:   make(map[string]attachedCgroup),
		processes: make(map[process]*perfevent.Target),
	}
}

func (a *attached) count() int {
	n := len(a.cgroups) + len(a.processes)
	if a.host != nil {
		n++
	}
	return n
}

// clear forgets everything; the session that it belonged to is closed.
func (a *attached) clear() { *a = *newAttached() }

// detach ends what is attached for no reason any more.
func (a *attached) detach(plan perfevent.Plan, starts map[int]uint64) error {
	var errs []error
	wide := plan.Mode == perfevent.ModeHost || plan.Mode == perfevent.ModeFilter
	if a.host != nil && !wide {
		errs = append(errs, a.host.Detach())
		a.host = nil
	}
	for dir, t := range a.cgroups {
		if wide || t.gone(dir) || !slices.ContainsFunc(plan.Cgroups, func(c perfevent.WantedCgroup) bool { return c.Directory == dir }) {
			errs = append(errs, t.Detach())
			delete(a.cgroups, dir)
		}
	}
	keep := make(map[process]bool, len(plan.Processes))
	if !wide {
		for _, p := range plan.Processes {
			keep[process{p.PID, starts[p.PID]}] = true
		}
	}
	for p, t := range a.processes {
		if !keep[p] {
			errs = append(errs, t.Detach())
			delete(a.processes, p)
		}
	}
	return errors.Join(errs...)
}

// attach begins with what is new in the plan. What could not be attached though
// it is still there is returned as left out.
func (a *attached) attach(session *perfevent.Session, plan perfevent.Plan, starts map[int]uint64) (leftOut []perfevent.LeftOut) {
	failed := func(what string, err error) {
		gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, os.ErrProcessDone)
		if !gone { // else the next discovery knows
			leftOut = append(leftOut, perfevent.LeftOut{What: what, Reason: err.Error()})
		}
	}
	if plan.Mode == perfevent.ModeHost || plan.Mode == perfevent.ModeFilter {
		if a.host == nil {
			t, err := session.AttachHost()
			if err != nil {
				failed("host", err)
			}
			a.host = t
		}
		return leftOut
	}
	for _, c := range plan.Cgroups {
		if _, ok := a.cgroups[c.Directory]; ok {
			continue
		}
		info, err := os.Stat(c.Directory)
		var t *perfevent.Target
		if err == nil {
			t, err = session.AttachCgroup(c.Directory)
		}
		if err != nil {
			failed("cgroup "+c.Path, err)
			continue
		}
		a.cgroups[c.Directory] = attachedCgroup{t, info}
	}
	for _, p := range plan.Processes {
		key := process{p.PID, starts[p.PID]}
		if _, ok := a.processes[key]; ok {
			continue
		}
		t, err := session.AttachProcess(p.PID)
		if err != nil {
			failed(fmt.Sprintf("process %d", p.PID), err)
			continue
		}
		a.processes[key] = t
	}
	return leftOut
}

// apply makes what is attached be what was found.
func (r *reader) apply(f found) {
	if !f.failed {
		r.last = f
	}
	options := perfevent.Options{
		CPUs:           f.plan.CPUs,
		Period:         r.period,
		Kernel:         r.kernel(f.rights),
		HostWide:       f.plan.HostWide,
		UserStack:      r.userStack(f),
		MaxDescriptors: r.cfg.MaxEvents,
	}
	session := r.session.Load()
	if f.failed && session != nil {
		r.reportFailure(f.err)
		return // what is attached stays: nothing says that it should not
	}
	if session != nil && (f.plan.Mode == perfevent.ModeNone || !sameOptions(options, r.attached.options)) {
		r.close()
		session = nil
	}
	if f.plan.Mode == perfevent.ModeNone {
		r.report(f)
		return
	}
	if session == nil {
		opened, err := perfevent.Open(options)
		if err != nil {
			f.plan.LeftOut = append(f.plan.LeftOut, perfevent.LeftOut{What: "everything", Reason: err.Error()})
			f.err = err
			r.report(f)
			return
		}
		session = opened
		r.cfg.Sink.ReadUpTo(r.cfg.Now())
		r.attached.options = options
		r.session.Store(session)
	}
	if err := r.attached.detach(f.plan, f.Starts); err != nil {
		r.cfg.Logger.Debug("Detaching perf events failed", zap.Error(err))
	}
	refused := r.attached.attach(session, f.plan, f.Starts)
	r.prepare(f)
	f.plan.LeftOut = append(f.plan.LeftOut, refused...)
	if r.attached.count() == 0 {
		r.close()
		if len(refused) > 0 {
			f.err = errors.New(refused[0].Reason)
		}
	}
	r.targets.Store(int64(r.attached.count()))
	r.report(f)
}

func sameOptions(a, b perfevent.Options) bool {
	return slices.Equal(a.CPUs, b.CPUs) && a.Period == b.Period && a.Kernel == b.Kernel &&
		a.HostWide == b.HostWide && a.UserStack == b.UserStack && a.MaxDescriptors == b.MaxDescriptors
}
