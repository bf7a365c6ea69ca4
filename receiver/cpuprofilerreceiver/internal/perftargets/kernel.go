// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perftargets

import "github.com/hotprofile/hotprofile/internal/perfevent"

// KernelStacks selects whether the kernel part of stacks is sampled.
type KernelStacks string

// These are the values of KernelStacks.
const (
	// KernelAuto samples the kernel part if permitted.
	KernelAuto KernelStacks = "auto"
	// KernelDemanded makes Start fail if the kernel part is not permitted.
	KernelDemanded KernelStacks = "true"
	// KernelNever does not sample the kernel part. If permitted, time in the kernel is
	// attributed to the function that called the kernel.
	KernelNever KernelStacks = "false"
)

// Of returns the mode in which a session samples the kernel.
func (k KernelStacks) Of(r perfevent.Rights) perfevent.Kernel {
	return r.KernelMode(k != KernelNever)
}
