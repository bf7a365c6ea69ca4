// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofconv

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
)

// converter adds one OTLP profile to a builder.
type converter struct {
	b         *Builder
	d         dictionary.Reader
	locations map[int32]*profile.Location // by index; nil if malformed
	labels    map[int32]int               // by attribute index; 0 if the attribute is no label
	scratch   []*profile.Location
	common    []int // labels of every sample
	ids       []int // labels of the current sample

	incomplete bool // whether the stack of the last sample is incomplete
}

// sample adds a sample and its value. It returns false if the sample is malformed.
func (c *converter) sample(s pprofile.Sample, value, period int64) bool {
	b := c.b
	locations, ok := c.stack(s.StackIndex())
	if !ok {
		return false
	}
	key := b.scratch[:0]
	for _, l := range locations {
		key = binary.AppendUvarint(key, l.ID)
	}
	// A 0 separates the stack from the labels, because no location has the id 0.
	key = append(key, 0)
	c.incomplete = false
	c.ids = append(c.ids[:0], c.common...)
	for _, id := range c.common {
		key = binary.AppendUvarint(key, uint64(id))
	}
	for _, i := range s.AttributeIndices().All() {
		if id := c.label(i); id != 0 && len(c.ids) < maxLabels {
			c.incomplete = c.incomplete || b.labelTable[id-1].key == attr.StackTruncated
			c.ids = append(c.ids, id)
			key = binary.AppendUvarint(key, uint64(id))
		}
	}
	b.scratch = key

	out := b.samples[string(key)]
	if out == nil {
		out = &profile.Sample{Location: slices.Clone(locations), Value: make([]int64, len(b.out.SampleType))}
		b.size += sampleSize + len(key) + 8*len(locations)
		for _, id := range c.ids {
			b.label(out, b.labelTable[id-1])
		}
		b.samples[string(key)] = out
		b.out.Sample = append(b.out.Sample, out)
	}

	out.Value[0] += value
	if len(out.Value) > 1 {
		out.Value[1] += value * period
	}
	return true
}

// label returns the number of an attribute's label. If the attribute is
// not a label, it returns 0.
func (c *converter) label(i int32) int {
	if id, known := c.labels[i]; known {
		return id
	}
	id := 0
	if table := c.d.AttributeTable(); i >= 0 && int(i) < table.Len() {
		id = c.b.labelOf(c.d.Text(table.At(int(i)).KeyStrindex()), table.At(int(i)).Value())
	}
	c.labels[i] = id
	return id
}

// stack returns the locations of a stack. The locations are valid
// until the next call of stack.
func (c *converter) stack(i int32) ([]*profile.Location, bool) {
	table := c.d.StackTable()
	if i < 0 || int(i) >= table.Len() {
		return nil, false
	}
	indices := table.At(int(i)).LocationIndices()
	out := c.scratch[:0]
	for i := range min(indices.Len(), maxDepth) {
		at := indices.At(i)
		l, known := c.locations[at]
		if !known {
			l = c.location(at)
			c.locations[at] = l
		}
		if l == nil {
			return nil, false
		}
		out = append(out, l)
	}
	c.scratch = out
	return out, true
}

// location returns the pprof location for an index. If the location does not exist, or
// refers to an entry that does not exist, it returns nil.
func (c *converter) location(i int32) *profile.Location {
	table := c.d.LocationTable()
	if i < 0 || int(i) >= table.Len() {
		return nil
	}
	in := table.At(int(i))
	m, ok := c.mapping(in.MappingIndex())
	if !ok {
		return nil
	}
	lines := make([]profile.Line, 0, min(in.Lines().Len(), maxLines))
	for i := range min(in.Lines().Len(), maxLines) {
		line := in.Lines().At(i)
		f, ok := c.function(line.FunctionIndex())
		if !ok {
			return nil
		}
		if f != nil {
			lines = append(lines, profile.Line{Function: f, Line: line.Line(), Column: line.Column()})
		}
	}

	b := c.b
	key := binary.LittleEndian.AppendUint64(b.scratch[:0], in.Address())
	if m != nil {
		key = binary.AppendUvarint(key, m.ID)
	} else {
		key = append(key, 0)
	}
	for _, l := range lines {
		key = binary.AppendUvarint(key, l.Function.ID)
		key = binary.AppendVarint(key, l.Line)
		key = binary.AppendVarint(key, l.Column)
	}
	b.scratch = key
	out := b.locations[string(key)]
	if out == nil {
		out = &profile.Location{ID: uint64(len(b.out.Location) + 1), Mapping: m, Address: in.Address(), Line: lines}
		b.size += locationSize + len(key) + len(lines)*lineSize
		b.locations[string(key)] = out
		b.out.Location = append(b.out.Location, out)
	}
	return out
}

// function returns the pprof function for an index in the dictionary's function table. It
// returns nil for index 0. ok is false if the index is out of range.
func (c *converter) function(i int32) (f *profile.Function, ok bool) {
	table := c.d.FunctionTable()
	if i < 0 || int(i) >= table.Len() {
		return nil, false
	}
	if i == 0 {
		return nil, true
	}
	in := table.At(int(i))
	key := profile.Function{
		Name:       Cut(c.d.Text(in.NameStrindex())),
		SystemName: Cut(c.d.Text(in.SystemNameStrindex())),
		Filename:   Cut(c.d.Text(in.FilenameStrindex())),
		StartLine:  in.StartLine(),
	}
	b := c.b
	f = b.functions[key]
	if f == nil {
		f = new(key)
		f.ID = uint64(len(b.out.Function) + 1)
		f.SystemName = cmp.Or(key.SystemName, key.Name)
		b.size += functionSize + len(key.Name) + len(key.SystemName) + len(key.Filename)
		b.functions[key] = f
		b.out.Function = append(b.out.Function, f)
	}
	return f, true
}

// mapping returns the pprof mapping for an index in the dictionary's mapping table. It
// returns nil for index 0. ok is false if the index is out of range.
func (c *converter) mapping(i int32) (m *profile.Mapping, ok bool) {
	table := c.d.MappingTable()
	if i < 0 || int(i) >= table.Len() {
		return nil, false
	}
	if i == 0 {
		return nil, true
	}
	in := table.At(int(i))
	key := profile.Mapping{
		Start:  in.MemoryStart(),
		Limit:  in.MemoryLimit(),
		Offset: in.FileOffset(),
		File:   Cut(c.d.Text(in.FilenameStrindex())),
		// Functions are resolved on the program's host. Without these flags, pprof would
		// search the reader's disk for the program.
		HasFunctions: true, HasFilenames: true, HasLineNumbers: true, HasInlineFrames: true,
	}
	// A mapping of pprof has only one build id. Tools expect the linker's build id.
	rank := 0
	for k, v := range c.d.Attributes(in.AttributeIndices()) {
		r := slices.Index([]string{attr.BuildIDHTLHash, attr.BuildIDGo, attr.BuildIDGNU}, k) + 1
		if r > rank {
			rank = r
			key.BuildID, _ = TextOf(v)
		}
	}
	b := c.b
	m = b.mappings[key]
	if m == nil {
		m = new(key)
		m.ID = uint64(len(b.out.Mapping) + 1)
		b.size += mappingSize + len(key.File) + len(key.BuildID)
		b.mappings[key] = m
		b.out.Mapping = append(b.out.Mapping, m)
	}
	return m, true
}
