// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"

	"github.com/hotprofile/hotprofile/internal/perfevent"
)

// Finder finds what to sample now.
type Finder interface {
	// Find finds it. hostWide reports whether CPU-wide events are permitted; if the
	// whole host is wanted and they are not, Find returns the processes to sample
	// instead.
	Find(ctx context.Context, hostWide bool) (Finding, error)
}

// Finding lists what to sample at one moment.
type Finding struct {
	Wanted perfevent.Wanted
	// Starts are the start times of the processes in Wanted, by pid.
	Starts map[int]uint64
	// Missing are the targets that nothing was found for.
	Missing []string
	// Only, if set, reports which processes are meant, for events that see others
	// too.
	Only func(pid int, cgroup string) bool
}

// Found is a Finding and how to sample it.
type Found struct {
	Finding
	Rights perfevent.Rights
	Plan   perfevent.Plan
	// Err is why nothing can be sampled; nil if something can.
	Err error

	// failed reports that the search failed: nothing is known.
	failed bool
}

// KernelStacks selects whether the kernel's part of stacks is sampled.
type KernelStacks string

// The values of KernelStacks.
const (
	// KernelAuto samples it if permitted.
	KernelAuto KernelStacks = "auto"
	// KernelDemanded makes Start fail without the right.
	KernelDemanded KernelStacks = "true"
	// KernelNever does not sample it. Time in the kernel is attributed to the
	// function that called the kernel, if permitted.
	KernelNever KernelStacks = "false"
)

// Of returns what a session samples of the kernel.
func (k KernelStacks) Of(r perfevent.Rights) perfevent.Kernel {
	return r.KernelMode(k != KernelNever)
}
