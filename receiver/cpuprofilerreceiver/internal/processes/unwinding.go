// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"path"
	"strings"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// Mapping returns the executable mapping at an address, or nil if no file is mapped there.
func (p *Process) Mapping(address uint64) *samples.Mapping { return p.space.mapping(address) }

// Mapped returns the executable mappings, sorted by address.
// The caller must not change them.
func (p *Process) Mapped() []*samples.Mapping { return p.space.mappings }

// Program returns the number of the program that the process runs. No two programs of a
// table have the same number.
func (p *Process) Program() uint64 { return p.program }

// ContainerID returns the id of the process's container, or "" without a container.
func (p *Process) ContainerID() string { return p.facts.group.ContainerID }

// ExecutableAndLibc returns the mappings of the executable and of the C library. A missing
// mapping is nil. All stacks of a native program go through these files.
func (p *Process) ExecutableAndLibc() (executable, libc *samples.Mapping) {
	for _, m := range p.space.mappings {
		switch {
		case executable == nil && m.Path == p.facts.path:
			executable = m
		case libc == nil && isLibC(m.Path):
			libc = m
		}
	}
	return executable, libc
}

// isLibC reports whether a file has the name of a C library. The file of glibc is
// named libc.so.6. Before glibc 2.34, it had a name such as libc-2.31.so. musl's C
// library is also its dynamic linker.
func isLibC(file string) bool {
	name := path.Base(file)
	return strings.HasPrefix(name, "libc.so.") || strings.HasPrefix(name, "libc-2.") ||
		strings.HasPrefix(name, "ld-musl-") || strings.HasPrefix(name, "libc.musl-")
}
