// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package attach

import "github.com/hotprofile/hotprofile/internal/samples"

// maxCopied bounds the copied bytes of stacks per second, so that they fit the rings: a
// thousand stacks of 16 KiB.
const maxCopied = 16 << 20

// StacksPerSecond returns the bound on sampled stacks if each copies so many bytes.
func StacksPerSecond(most, copied int) int {
	if copied == 0 {
		return most
	}
	return max(1, min(most, maxCopied/copied))
}

// NoStack returns the stack of what has none: a frame that says so. Backends drop samples
// without a frame.
func NoStack() *samples.Stack {
	frame := &samples.Location{Type: samples.FrameNative, Resolved: true, Lines: []samples.Line{{Function: "[no stack]"}}}
	return &samples.Stack{Locations: []*samples.Location{frame}, Truncated: true}
}
