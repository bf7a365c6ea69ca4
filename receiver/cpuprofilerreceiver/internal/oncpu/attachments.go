// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import "github.com/hotprofile/hotprofile/internal/perfevent"

// Attachments is what a session has its events on, for other samplers of the
// same targets. It belongs to one goroutine, and to one session: a new one
// begins with new Attachments.
type Attachments struct{ attached *attached }

// NewAttachments returns none.
func NewAttachments() *Attachments { return &Attachments{newAttached()} }

// Apply makes what is attached be what a plan says. It returns the targets that
// were let go, and what could not be attached though it is still there; err is
// about letting go.
func (a *Attachments) Apply(session *perfevent.Session, plan perfevent.Plan, starts map[int]uint64) (gone []*perfevent.Target, leftOut []perfevent.LeftOut, err error) {
	before := a.targets()
	err = a.attached.detach(plan, starts)
	after := a.targets()
	for t := range before {
		if !after[t] {
			gone = append(gone, t)
		}
	}
	return gone, a.attached.attach(session, plan, starts), err
}

func (a *Attachments) targets() map[*perfevent.Target]bool {
	all := make(map[*perfevent.Target]bool, a.Count())
	if a.attached.host != nil {
		all[a.attached.host] = true
	}
	for _, c := range a.attached.cgroups {
		all[c.Target] = true
	}
	for _, t := range a.attached.processes {
		all[t] = true
	}
	return all
}

// Count is how many there are.
func (a *Attachments) Count() int { return a.attached.count() }

// Reached is the part of a stack's user half that frame pointers led through.
func Reached(user []uint64) []uint64 { return reached(user) }
