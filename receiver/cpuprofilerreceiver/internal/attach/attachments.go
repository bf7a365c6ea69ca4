// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// attachments contains the perf events of one session. It belongs to one goroutine.
type attachments struct {
	targets map[target]attachedTarget
	// captures contains the times during which the attachments sample.
	captures map[*perfevent.Attachment]*samples.Capture
	now      func() int64 // CLOCK_MONOTONIC
}

// target identifies a cgroup by its directory, or a process by its pid and start time.
// The pid alone may later belong to another process. The zero value is the host.
type target struct {
	directory string
	procfs.Process
}

// attachedTarget is the attachment of a target. If a cgroup is removed and created again
// with the same name, the new cgroup has another directory.
type attachedTarget struct {
	*perfevent.Attachment
	directory os.FileInfo // nil unless the target is a cgroup
}

// gone reports whether the directory of a cgroup was removed or replaced.
func (t attachedTarget) gone(dir string) bool {
	now, err := os.Stat(dir)
	return err != nil || !os.SameFile(now, t.directory)
}

// newAttachments returns an empty set.
func newAttachments(now func() int64) *attachments {
	return &attachments{targets: make(map[target]attachedTarget), captures: make(map[*perfevent.Attachment]*samples.Capture), now: now}
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

// apply changes the attachments to match a plan. It returns the detached attachments, and
// the targets that still exist but could not be attached. err is an error from detaching.
func (a *attachments) apply(session *perfevent.Session, plan Plan) (gone []*perfevent.Attachment, leftOut []LeftOut, err error) {
	wanted := plan.targets()
	gone, err = a.detach(wanted)
	for _, w := range wanted {
		if _, ok := a.targets[w.target]; ok {
			continue
		}
		err := a.attach(session, w.target)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, os.ErrProcessDone) { // otherwise the next search notices it
			leftOut = append(leftOut, LeftOut{What: w.name, Reason: err.Error()})
		}
	}
	return gone, leftOut, err
}

// namedTarget is a target with its name for LeftOut.
type namedTarget struct {
	target
	name string
}

// targets lists the targets of the plan, in the order in which they are attached.
func (p Plan) targets() (all []namedTarget) {
	if p.Wide() {
		return []namedTarget{{name: "host"}}
	}
	for _, c := range p.Cgroups {
		all = append(all, namedTarget{target{directory: c.Directory}, c.String()})
	}
	for _, process := range p.Processes {
		all = append(all, namedTarget{target{Process: process.Process}, fmt.Sprintf("process %d", process.PID)})
	}
	return all
}

// detach detaches all targets that are not wanted, and all cgroups
// that were removed or replaced.
func (a *attachments) detach(wanted []namedTarget) (gone []*perfevent.Attachment, err error) {
	keep := make(map[target]bool, len(wanted))
	for _, w := range wanted {
		keep[w.target] = true
	}
	var errs []error
	for of, t := range a.targets {
		if keep[of] && (of.directory == "" || !t.gone(of.directory)) {
			continue
		}
		errs = append(errs, t.Detach())
		a.captures[t.Attachment].End(a.now())
		delete(a.captures, t.Attachment)
		delete(a.targets, of)
		gone = append(gone, t.Attachment)
	}
	return gone, errors.Join(errs...)
}

// attach attaches a target.
func (a *attachments) attach(session *perfevent.Session, of target) (err error) {
	var t attachedTarget
	from := a.now()
	switch {
	case of.directory != "":
		if t.directory, err = os.Stat(of.directory); err == nil {
			t.Attachment, err = session.AttachCgroup(of.directory)
		}
	case of.PID != 0:
		t.Attachment, err = session.AttachProcess(of.PID)
	default:
		t.Attachment, err = session.AttachHost()
	}
	if err == nil {
		a.began(t.Attachment, from)
		a.targets[of] = t
	}
	return err
}
