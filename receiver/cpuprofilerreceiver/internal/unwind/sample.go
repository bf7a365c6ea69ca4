// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// Memory provides the mappings of a process.
type Memory interface {
	Mappings
	// Mapped returns the mappings, sorted by address. The caller must not change the slice.
	Mapped() []*samples.Mapping
}

// If a process maps at most maxAhead files, all of its files are read ahead. A program such
// as ffmpeg maps more than a hundred files, but runs code of only a few. Reading all files
// would delay the files that its stacks need.
const maxAhead = 16

// Sample replaces the user part of a sample's stack with the unwound stack. The sample must
// have registers. The stack is valid until the next call.
func (u *unwinder) Sample(s *perfevent.Sample, p Memory, generated Generated) End {
	pcs, end := u.Unwind(s, generated, p)
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
