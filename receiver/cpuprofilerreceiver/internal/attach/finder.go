// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"

	"github.com/hotprofile/hotprofile/internal/perfevent"
)

// Finder says what is to be sampled now.
type Finder interface {
	// Find looks for it. hostWide says that CPU-wide events are permitted; where
	// the whole host is wanted and they are not, it finds the processes that are
	// sampled in its stead.
	Find(ctx context.Context, hostWide bool) (Finding, error)
}

// Finding is what is to be sampled at one moment.
type Finding struct {
	Wanted perfevent.Wanted
	// Starts are the start times of the processes in Wanted, by pid.
	Starts map[int]uint64
	// Missing names the targets that nothing was found for.
	Missing []string
	// Only, where it is set, says which processes are meant, for events that see
	// others too.
	Only func(pid int, cgroup string) bool
}

// Found is a Finding and what is to be done about it.
type Found struct {
	Finding
	Rights perfevent.Rights
	Plan   perfevent.Plan
	// Err says why nothing can be sampled; nil where something can.
	Err error

	// failed says that Err is a failure to look: nothing is known.
	failed bool
}

// KernelStacks says whether the kernel's part of stacks is sampled.
type KernelStacks uint8

// What may be asked for.
const (
	// KernelAuto samples it where that is permitted.
	KernelAuto KernelStacks = iota
	// KernelDemanded does not start without.
	KernelDemanded
	// KernelNever leaves it out. Time in the kernel still counts, for the
	// function that called the kernel, where that is permitted.
	KernelNever
)

// Of is what a session samples of the kernel.
func (k KernelStacks) Of(r perfevent.Rights) perfevent.Kernel {
	return r.KernelMode(k != KernelNever)
}
