// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package perftargets

import "github.com/hotprofile/hotprofile/internal/samples"

// maxCopied is the maximum number of bytes of stacks that are copied per second, so that
// the copies fit into the rings. The value allows 1024 stacks of 16 KiB per second.
const maxCopied = 16 << 20

// StacksPerSecond returns the maximum number of stacks to sample per second. This number
// is most, or less if copied bytes of each stack must be copied.
func StacksPerSecond(most, copied int) int {
	if copied == 0 {
		return most
	}
	return max(1, min(most, maxCopied/copied))
}

// NoStack is a stack with the single frame "[no stack]", for samples without a stack.
// Backends drop samples without a frame.
var NoStack = &samples.Stack{
	Locations: []*samples.Location{{Type: samples.FrameNative, Resolved: true, Lines: []samples.Line{{Function: "[no stack]"}}}},
	Truncated: true,
}
