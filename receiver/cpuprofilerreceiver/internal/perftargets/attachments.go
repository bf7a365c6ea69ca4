// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package perftargets

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// attachments contains the perf events of one session. The Data of each attachment is a
// capture, which is the time during which the attachment samples. Only one goroutine uses
// attachments.
type attachments struct {
	targets map[target]attachedTarget
	now     func() int64 // CLOCK_MONOTONIC
}

// target identifies a cgroup by its directory, or a process by its pid and start time. A
// pid alone is not sufficient, because the pid may later belong to another process. The
// zero value is the host.
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
	return &attachments{targets: make(map[target]attachedTarget), now: now}
}

// captureOf returns the capture of an attachment. It returns nil for an attachment that
// belongs to no target.
func captureOf(t *perfevent.Attachment) *samples.Capture {
	capture, _ := t.Data.(*samples.Capture)
	return capture
}

// renew ends all captures and begins new ones.
func (a *attachments) renew() {
	now := a.now()
	for _, t := range a.targets {
		captureOf(t.Attachment).End(now)
		t.Data = &samples.Capture{From: now}
	}
}

// end ends all captures.
func (a *attachments) end() {
	for _, t := range a.targets {
		captureOf(t.Attachment).End(a.now())
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
		captureOf(t.Attachment).End(a.now())
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
		t.Data = &samples.Capture{From: from}
		a.targets[of] = t
	}
	return err
}
