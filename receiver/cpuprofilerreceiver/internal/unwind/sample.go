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

// maxAhead is the number of files up to which all files of a process are read before its
// stacks need them. A program such as ffmpeg has more than a hundred, and calls few of them:
// reading them all takes so long that those in its stacks wait.
const maxAhead = 16

// Sample replaces the stack of a sample, which must have registers, by the one that
// unwinding finds, and returns how that ends. The stack is valid until the next call.
func (u *unwinder) Sample(s *perfevent.Sample, p Memory, generated Generated) End {
	in := Input{
		Registers: Registers(s.Registers),
		Stack:     s.Stack,
		Chain:     s.User,
		Generated: generated,
	}
	pcs, end := u.Unwind(&in, p)
	if end == Unready {
		// The other files of the process are needed soon too.
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
