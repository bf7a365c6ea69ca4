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
		for _, m := range p.Mapped() {
			u.tables.Lookup(m)
		}
	}
	s.User = pcs
	s.Truncated = end != Whole
	return end
}
