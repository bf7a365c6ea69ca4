// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// Memory is what is known of a process's memory.
type Memory interface {
	Mappings
	// Mapped lists what is mapped, by address. It is not to be changed.
	Mapped() []*samples.Mapping
}

// Sample puts the stack that a sample's registers and copy lead to in place of
// the one that the kernel found, and says how it ends. It needs a sample that
// has registers. The stack is valid until the next call.
func (u *Unwinder) Sample(s *perfevent.Sample, p Memory) End {
	in := Input{
		Registers: Registers(s.Registers),
		Stack:     s.Stack,
		Chain:     s.User,
	}
	pcs, end := u.Unwind(&in, p)
	if end == Unready {
		// The rest of the process's files are needed soon too.
		for _, m := range p.Mapped() {
			u.tables.Lookup(m)
		}
	}
	s.User = pcs
	s.Truncated = end != Whole
	return end
}
