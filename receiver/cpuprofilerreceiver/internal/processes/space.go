// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"slices"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// space holds the executable mappings of a process and its interned stacks. Forked children
// share the space of their parent until one of them maps a file.
type space struct {
	users     int
	mappings  []*samples.Mapping // sorted by Start, without overlaps
	mapped    int                // the memory of mappings
	stacks    map[uint64]*interned
	locations map[locationKey]*samples.Location
	// unmapped is true if at least one location has no mapping.
	unmapped bool
	// bytes is the memory of stacks and locations.
	bytes int
}

// interned is an interned stack with its addresses.
type interned struct {
	addresses []uint64
	kernel    int // the number of kernel addresses, which come first
	stack     *samples.Stack
}

// locationKey identifies a location.
type locationKey struct {
	address uint64
	leaf    bool
}

// stackBytes and locationBytes are upper bounds for the memory of an interned stack and of
// a location, including map entries.
const (
	stackBytes    = 160 // plus 16 per frame
	locationBytes = 160
)

// maxKernelLocations is the maximum number of the kernel's locations, which all
// processes share. When this number is reached, the table forgets the
// locations, but stacks keep them.
const maxKernelLocations = 16384

func newSpace() *space {
	return &space{stacks: make(map[uint64]*interned), locations: make(map[locationKey]*samples.Location)}
}

func (p *Process) enter(s *space) {
	s.users++
	p.space = s
}

// enterEmptySpace gives an empty space to a process that has no space yet, because the
// process has no mappings or its mappings cannot be read.
func (p *Process) enterEmptySpace() {
	if p.space == nil {
		p.enter(newSpace())
	}
}

func (p *Process) shareSpace(parent *Process) {
	if parent.space != nil {
		p.enter(parent.space)
	}
}

func (p *Process) leaveSpace() {
	s := p.space
	if s == nil {
		return
	}
	p.space = nil
	if s.users--; s.users == 0 {
		p.table.dropStacks(s)
		p.table.setMappings(s, nil, 0)
	}
}

// dropStacks forgets the stacks of a space.
func (t *Table) dropStacks(s *space) {
	t.stats.Stacks -= len(s.stacks)
	t.stats.StackBytes -= s.bytes
	clear(s.stacks)
	clear(s.locations)
	s.bytes, s.unmapped = 0, false
}

// Stack returns the interned stack of a sample, or nil for a sample without frames. whole
// reports whether the stack is known to reach the thread's entry, whatever the names of
// its functions are. Stack does not allocate memory for a known stack.
func (p *Process) Stack(sample *perfevent.Sample, whole bool) *samples.Stack {
	if len(sample.Kernel)+len(sample.User) == 0 {
		return nil
	}
	h := hash(sample.Kernel, sample.User)
	if in, ok := p.space.stacks[h]; ok && in.is(sample.Kernel, sample.User) && in.stack.Whole == whole {
		return in.stack
	}
	return p.intern(h, sample, whole)
}

func (in *interned) is(kernel, user []uint64) bool {
	return in.kernel == len(kernel) && slices.Equal(in.addresses[:in.kernel], kernel) &&
		slices.Equal(in.addresses[in.kernel:], user)
}

// hash returns the hash of a stack. The hash need not be collision-resistant,
// because the addresses are compared too. If a process causes collisions, only its
// own stacks have to be interned again.
func hash(kernel, user []uint64) uint64 {
	const multiplier = 0x9e3779b97f4a7c15
	h := uint64(len(kernel))
	for _, part := range [...][]uint64{kernel, user} {
		for _, a := range part {
			h = (h ^ a) * multiplier
			h ^= h >> 32
		}
	}
	return h
}

func (p *Process) intern(h uint64, sample *perfevent.Sample, whole bool) *samples.Stack {
	t, s := p.table, p.space
	depth := len(sample.Kernel) + len(sample.User)
	need := stackBytes + depth*(16+locationBytes) // upper bound
	limit := t.cfg.Limits.StackBytes
	switch {
	case s.bytes+need > limit/2:
		t.stats.StackResets++
		t.dropStacks(s)
	case t.stats.StackBytes+need > limit:
		t.stats.StackResets++
		t.dropMostStacks(s, need)
	}

	before := len(s.locations)
	in := &interned{
		addresses: append(append(make([]uint64, 0, depth), sample.Kernel...), sample.User...),
		kernel:    len(sample.Kernel),
		stack:     &samples.Stack{Locations: make([]*samples.Location, 0, depth), Truncated: sample.Truncated, Whole: whole},
	}
	for i, a := range sample.Kernel {
		in.stack.Locations = append(in.stack.Locations, t.kernelLocation(locationKey{a, i == 0}))
	}
	for i, a := range sample.User {
		// The first address is not a return address, even if user code has entered the
		// kernel. After a system call, it is the next instruction, in the same function.
		// After a fault, it is the faulting instruction.
		in.stack.Locations = append(in.stack.Locations, p.location(locationKey{a, i == 0}))
	}
	if _, collides := s.stacks[h]; !collides {
		t.stats.Stacks++
	}
	s.stacks[h] = in
	used := stackBytes + depth*16 + (len(s.locations)-before)*locationBytes
	s.bytes += used
	t.stats.StackBytes += used
	return in.stack
}

func (t *Table) kernelLocation(k locationKey) *samples.Location {
	if l, ok := t.kernelLocations[k]; ok {
		return l
	}
	if len(t.kernelLocations) >= maxKernelLocations {
		clear(t.kernelLocations)
	}
	l := &samples.Location{Type: samples.FrameKernel, Mapping: t.kernel, Address: k.address, Leaf: k.leaf}
	t.kernelLocations[k] = l
	return l
}

// location returns the location of an address in the process.
func (p *Process) location(k locationKey) *samples.Location {
	if interpreted := p.table.cfg.Interpreted; k.address >= 1<<63 && interpreted != nil {
		if l := interpreted(p.PID, k.address); l != nil {
			return l
		}
	}
	return p.space.location(k)
}

func (s *space) location(k locationKey) *samples.Location {
	if l, ok := s.locations[k]; ok {
		return l
	}
	at := k.address
	if !k.leaf && at > 0 {
		at-- // a call may be the last instruction of its mapping
	}
	l := &samples.Location{Type: samples.FrameNative, Mapping: s.mapping(at), Address: k.address, Leaf: k.leaf}
	if l.Mapping == nil {
		s.unmapped = true
	}
	s.locations[k] = l
	return l
}

// mapping returns the mapping at an address, or nil if no file is mapped there.
func (s *space) mapping(address uint64) *samples.Mapping {
	i, found := slices.BinarySearchFunc(s.mappings, address, byStart)
	if !found {
		i--
	}
	if i < 0 || address >= s.mappings[i].Limit {
		return nil
	}
	return s.mappings[i]
}

func byStart(m *samples.Mapping, address uint64) int { return cmp.Compare(m.Start, address) }

// same reports whether m and r map the same part of the same file at the same addresses.
func same(m *samples.Mapping, r *procfs.Mapping) bool {
	return m.Start == r.Start && m.Limit == r.Limit && m.FileOffset == r.Offset && m.Inode == r.Inode
}

// named reports whether a mapping with this path can have symbols. Files can have
// symbols, and so can code that the kernel maps into every process. Other names in
// brackets are kinds of anonymous memory.
func named(path []byte) bool {
	switch string(path) {
	case "[vdso]", "[vsyscall]":
		return true
	}
	return len(path) > 0 && path[0] == '/' && !bytes.HasPrefix(path, []byte("//"))
}

// mapped adds a mapping to a process's space and removes the overlapping parts of older
// mappings. A mapping without a file only removes older mappings. buildID may be empty.
func (t *Table) mapped(p *Process, r procfs.Mapping, buildID []byte) {
	s := p.space
	from, found := slices.BinarySearchFunc(s.mappings, r.Start, byStart)
	if !found && from > 0 && s.mappings[from-1].Limit > r.Start {
		from--
	}
	to := from
	for to < len(s.mappings) && s.mappings[to].Start < r.Limit {
		to++
	}
	isNamed := named(r.Path)
	if to == from+1 && same(s.mappings[from], &r) && isNamed {
		return // the mapping was read from /proc before its record arrived
	}
	if from == to && !isNamed {
		return
	}

	var between []*samples.Mapping
	if from < to {
		if first := s.mappings[from]; first.Start < r.Start {
			between = append(between, part(first, first.Start, r.Start))
		}
	}
	if isNamed {
		if len(s.mappings)-(to-from)+len(between) >= t.cfg.Limits.Mappings || s.mapped >= t.cfg.Limits.Bytes/4 {
			t.stats.MappingsLeftOut++
		} else {
			between = append(between, t.newMapping(p, &r, buildID))
		}
	}
	if from < to {
		if last := s.mappings[to-1]; last.Limit > r.Limit {
			between = append(between, part(last, r.Limit, last.Limit))
		}
	}

	stale := from < to || s.unmapped
	if s.users > 1 {
		old := s
		p.leaveSpace()
		s = newSpace()
		t.setMappings(s, slices.Clone(old.mappings), old.mapped)
		p.enter(s)
	} else if stale {
		t.dropStacks(s) // locations may refer to replaced mappings
	}
	bytes := s.mapped - mappingsBytes(s.mappings[from:to]) + mappingsBytes(between)
	t.setMappings(s, slices.Replace(s.mappings, from, to, between...), bytes)
}

// part returns the part of m from start to limit. It returns a copy, because locations
// refer to m.
func part(m *samples.Mapping, start, limit uint64) *samples.Mapping {
	return &samples.Mapping{
		PID: m.PID, Start: start, Limit: limit, FileOffset: m.FileOffset + start - m.Start,
		Path: m.Path, Root: m.Root, DeviceMajor: m.DeviceMajor, DeviceMinor: m.DeviceMinor, Inode: m.Inode,
	}
}

// newMapping returns a new mapping of a process, and tracks its file.
func (t *Table) newMapping(p *Process, r *procfs.Mapping, buildID []byte) *samples.Mapping {
	const maxPath = 4096
	m := &samples.Mapping{
		PID: p.PID, Start: r.Start, Limit: r.Limit, FileOffset: r.Offset, BuildID: hex.EncodeToString(buildID),
		Path: t.internBytes(r.Path, maxPath), Root: t.root(p), DeviceMajor: r.Major, DeviceMinor: r.Minor, Inode: r.Inode,
	}
	if t.cfg.Track != nil {
		t.cfg.Track(m)
	}
	return m
}

// root returns a number that identifies the root directory of a process. It reads this
// number once per program. If the process has ended, root returns the number of the
// parent, which the process has inherited.
func (t *Table) root(p *Process) uint64 {
	if p.rootRead {
		return p.facts.root
	}
	p.rootRead = true
	if root, err := t.fs.Root(p.PID); err == nil && root != p.facts.root {
		f := *p.facts
		f.root = root
		p.facts = &f
	}
	return p.facts.root
}

// replaceMappings sets the mappings of a process from the content of a maps file. It keeps
// unchanged mappings. If no mapping has changed, it keeps the stacks too.
func (t *Table) replaceMappings(p *Process, maps []byte) {
	var old []*samples.Mapping
	if p.space != nil {
		old = p.space.mappings
	}
	var now []*samples.Mapping
	kept, before, size := 0, uint64(0), 0
	for line := range bytes.Lines(maps) {
		r, ok := procfs.ParseExecutable(line)
		if !ok || !named(r.Path) || r.Start < before {
			continue // not executable, not a file, or not in the kernel's order
		}
		before = r.Limit
		if len(now) >= t.cfg.Limits.Mappings || size >= t.cfg.Limits.Bytes/4 {
			t.stats.MappingsLeftOut++
			continue
		}
		r.Path = bytes.ReplaceAll(r.Path, []byte(`\012`), []byte{'\n'}) // seq_path escapes line feeds
		if i, found := slices.BinarySearchFunc(old, r.Start, byStart); found && same(old[i], &r) {
			now = append(now, old[i])
			size += mappingBytes + len(old[i].Path)
			kept++
			continue
		}
		m := t.newMapping(p, &r, nil)
		now = append(now, m)
		size += mappingBytes + len(m.Path)
	}
	if p.space != nil && kept == len(old) && kept == len(now) {
		return
	}
	p.leaveSpace()
	s := newSpace()
	t.setMappings(s, now, size)
	p.enter(s)
}
