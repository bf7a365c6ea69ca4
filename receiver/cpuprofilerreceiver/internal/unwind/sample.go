// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// Memory has the mappings of a process.
type Memory interface {
	Mappings
	// Mapped lists the mappings by address. The caller must not change it.
	Mapped() []*samples.Mapping
}

// maxAhead is the maximum number of files of a process for which all files are read before
// its stacks need them. A program such as ffmpeg has more than a hundred files, and calls
// few of them. Reading them all would delay the files in its stacks.
const maxAhead = 16

// Sample replaces the stack of a sample, which must have registers, by the unwound stack.
// It returns the way in which the stack ends. The stack is valid until the next call.
func (u *unwinder) Sample(s *perfevent.Sample, p Memory, generated Generated) End {
	in := Input{
		Registers: Registers(s.Registers),
		Stack:     s.Stack,
		Chain:     s.User,
		Generated: generated,
	}
	pcs, end := u.Unwind(&in, p)
	if end == Unready {
		// The other files of the process will be needed soon too.
		if mapped := p.Mapped(); len(mapped) <= maxAhead {
			for _, m := range mapped {
				u.tables.Lookup(m)
			}
		}
	}
	s.User = pcs
	s.Truncated = end != Whole
	return end
}
