// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// attachments contains the perf events of one session, by target. It belongs to one
// goroutine.
type attachments struct {
	host    *perfevent.Attachment
	cgroups map[string]attachedCgroup // by directory
	// processes is keyed by pid and start time, because a pid may later belong to another
	// process.
	processes map[procfs.Process]*perfevent.Attachment
	// captures contains the times during which the attachments sample.
	captures map[*perfevent.Attachment]*samples.Capture
	now      func() int64 // CLOCK_MONOTONIC
}

// attachedCgroup is an attached cgroup and its directory. If a cgroup is removed and
// created again with the same name, it has another directory.
type attachedCgroup struct {
	*perfevent.Attachment
	directory os.FileInfo
}

func (c attachedCgroup) gone(dir string) bool {
	now, err := os.Stat(dir)
	return err != nil || !os.SameFile(now, c.directory)
}

// newAttachments returns an empty set.
func newAttachments(now func() int64) *attachments {
	return &attachments{
		cgroups:   make(map[string]attachedCgroup),
		processes: make(map[procfs.Process]*perfevent.Attachment),
		captures:  make(map[*perfevent.Attachment]*samples.Capture),
		now:       now,
	}
}

func (a *attachments) began(t *perfevent.Attachment, from int64) {
	a.captures[t] = &samples.Capture{From: from}
}

// renew ends all captures and begins new ones.
func (a *attachments) renew() {
	now := a.now()
	for t, c := range a.captures {
		c.End(now)
		a.began(t, now)
	}
}

// end ends all captures.
func (a *attachments) end() {
	for _, c := range a.captures {
		c.End(a.now())
	}
}

// count returns the number of attachments.
func (a *attachments) count() int {
	n := len(a.cgroups) + len(a.processes)
	if a.host != nil {
		n++
	}
	return n
}

// apply changes the attachments to match a plan. It returns the detached attachments, and
// the targets that still exist but could not be attached. err is an error from detaching.
func (a *attachments) apply(session *perfevent.Session, plan Plan) (gone []*perfevent.Attachment, leftOut []LeftOut, err error) {
	gone, err = a.detach(plan)
	return gone, a.attach(session, plan), err
}

// detach detaches targets that are not in the plan.
func (a *attachments) detach(plan Plan) (gone []*perfevent.Attachment, err error) {
	var errs []error
	end := func(t *perfevent.Attachment) {
		errs = append(errs, t.Detach())
		a.captures[t].End(a.now())
		delete(a.captures, t)
		gone = append(gone, t)
	}
	wide := plan.Mode == ModeHost || plan.Mode == ModeFilter
	if a.host != nil && !wide {
		end(a.host)
		a.host = nil
	}
	for dir, t := range a.cgroups {
		if wide || t.gone(dir) || !slices.ContainsFunc(plan.Cgroups, func(c WantedCgroup) bool { return c.Directory == dir }) {
			end(t.Attachment)
			delete(a.cgroups, dir)
		}
	}
	keep := make(map[procfs.Process]bool, len(plan.Processes))
	if !wide {
		for _, p := range plan.Processes {
			keep[p.Process] = true
		}
	}
	for p, t := range a.processes {
		if !keep[p] {
			end(t)
			delete(a.processes, p)
		}
	}
	return gone, errors.Join(errs...)
}

// attach attaches new targets of the plan. It returns the targets that still exist but
// could not be attached.
func (a *attachments) attach(session *perfevent.Session, plan Plan) (leftOut []LeftOut) {
	failed := func(what string, err error) {
		gone := errors.Is(err, fs.ErrNotExist) || errors.Is(err, os.ErrProcessDone)
		if !gone { // otherwise the next search notices it
			leftOut = append(leftOut, LeftOut{What: what, Reason: err.Error()})
		}
	}
	if plan.Mode == ModeHost || plan.Mode == ModeFilter {
		if a.host == nil {
			from := a.now()
			t, err := session.AttachHost()
			if err != nil {
				failed("host", err)
			} else {
				a.began(t, from)
			}
			a.host = t
		}
		return leftOut
	}
	for _, c := range plan.Cgroups {
		if _, ok := a.cgroups[c.Directory]; ok {
			continue
		}
		from := a.now()
		info, err := os.Stat(c.Directory)
		var t *perfevent.Attachment
		if err == nil {
			t, err = session.AttachCgroup(c.Directory)
		}
		if err != nil {
			failed("cgroup "+c.Path, err)
			continue
		}
		a.began(t, from)
		a.cgroups[c.Directory] = attachedCgroup{t, info}
	}
	for _, p := range plan.Processes {
		if _, ok := a.processes[p.Process]; ok {
			continue
		}
		from := a.now()
		t, err := session.AttachProcess(p.PID)
		if err != nil {
			failed(fmt.Sprintf("process %d", p.PID), err)
			continue
		}
		a.began(t, from)
		a.processes[p.Process] = t
	}
	return leftOut
}
