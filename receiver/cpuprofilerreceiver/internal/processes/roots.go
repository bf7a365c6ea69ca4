// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"strings"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// maxDepth is the default of kernel.perf_event_max_stack. A stack with that many
// frames may have been truncated.
const maxDepth = 127

// MarkTruncated sets s.Truncated from the symbols of the stack. A stack is whole if its
// root is a function at which threads start. A stack with an unknown root counts as
// truncated. Call MarkTruncated after the locations of all stacks were resolved, because
// stacks share locations. A later call with more symbols may change the result to whole.
func MarkTruncated(s *samples.Stack) {
	s.Truncated = !s.Whole && (len(s.Locations) >= maxDepth || len(s.Locations) == 0 ||
		!isRoot(s.Locations[len(s.Locations)-1]))
}

// NamelessEnd returns the last location of a truncated stack if the location is in a file
// and has no name. Such a location may still be a root. Otherwise NamelessEnd returns nil.
func NamelessEnd(s *samples.Stack) *samples.Location {
	n := len(s.Locations)
	if !s.Truncated || n == 0 || n >= maxDepth {
		return nil
	}
	l := s.Locations[n-1]
	if l.Type != samples.FrameNative || l.Mapping == nil || len(l.Lines) > 0 {
		return nil
	}
	return l
}

func isRoot(l *samples.Location) bool {
	if len(l.Lines) == 0 {
		return false
	}
	f := l.Lines[len(l.Lines)-1] // the other lines were inlined into this function
	name := f.SystemName
	if name == "" {
		name = f.Function
	}
	name, _, _ = strings.Cut(name, "@") // the version, as in clone@@GLIBC_2.2.5
	if l.Type == samples.FrameKernel {
		// A stack that ends in the kernel's entry code lacks its user part, so only the
		// roots of kernel threads count.
		switch name {
		case "ret_from_fork", "ret_from_fork_asm", "ret_from_kernel_thread", "kthread":
			return true
		}
		return false
	}
	switch name {
	case "_start", "_dl_start_user", // the program, and its dynamic linker before it
		"clone", "__clone", "clone3", "__clone3", "__GI___clone", "__GI___clone3",
		"start_thread", // glibc's start routine of threads
		"runtime.goexit", "runtime.goexit.abi0", "runtime.mstart", "runtime.mstart.abi0",
		"runtime.rt0_go", "runtime.rt0_go.abi0":
		return true
	}
	return strings.HasPrefix(name, "_rt0_") // Go's own _start: _rt0_amd64_linux
}
