// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package otlpprofiles

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// dictionary fills the dictionary of one request. Entries are told apart by
// content, since samplers intern per process and two processes may run the same
// code; by identity it only remembers what it has looked up before.
type dictionary struct {
	out  pprofile.ProfilesDictionary
	size int // as marshalled

	strings    map[string]int32
	attributes map[attribute]int32
	functions  map[function]int32
	mappings   map[mapping]int32
	locations  map[string]int32 // by content, as encode gives it
	stacks     map[string]int32
	links      map[samples.Link]int32

	knownMappings  map[*samples.Mapping]int32
	knownLocations map[*samples.Location]int32
	knownStacks    map[*samples.Stack]int32

	scratch []byte
}

type function struct {
	name, system, file int32
	startLine          int64
}

type mapping struct {
	start, limit, offset uint64
	file                 int32
	gnu, golang          int32 // build id attributes
}

// attribute is a key and its value: text, or number for the other kinds.
type attribute struct {
	key    int32
	kind   kind
	text   string
	number int64
}

type kind uint8

const (
	text kind = iota
	integer
	boolean
)

func newDictionary() dictionary {
	return dictionary{
		strings:        make(map[string]int32),
		attributes:     make(map[attribute]int32),
		functions:      make(map[function]int32),
		mappings:       make(map[mapping]int32),
		locations:      make(map[string]int32),
		stacks:         make(map[string]int32),
		links:          make(map[samples.Link]int32),
		knownMappings:  make(map[*samples.Mapping]int32),
		knownLocations: make(map[*samples.Location]int32),
		knownStacks:    make(map[*samples.Stack]int32),
	}
}

// reset starts over in out with nothing but the zero entries.
func (d *dictionary) reset(out pprofile.ProfilesDictionary) {
	clear(d.strings)
	clear(d.attributes)
	clear(d.functions)
	clear(d.mappings)
	clear(d.locations)
	clear(d.stacks)
	clear(d.links)
	clear(d.knownMappings)
	clear(d.knownLocations)
	clear(d.knownStacks)

	d.out = out
	out.StringTable().Append("")
	out.AttributeTable().AppendEmpty()
	out.FunctionTable().AppendEmpty()
	out.MappingTable().AppendEmpty()
	out.LocationTable().AppendEmpty()
	out.StackTable().AppendEmpty()
	out.LinkTable().AppendEmpty()
	d.strings[""] = 0
	d.functions[function{}] = 0
	d.mappings[mapping{}] = 0
	d.size = 5*entry(0) + // of all but the two that write empty fields of their own:
		entry(entry(0)) + // an attribute its value,
		entry(2*entry(0)) // a link its two ids
}

// valid makes a string what protobuf takes for one: a receiver refuses a whole
// request for one that is not UTF-8, and thread and file names are any bytes.
// The replacement is one byte so that no string grows.
func valid(s string) string { return strings.ToValidUTF8(s, "?") }

func (d *dictionary) string(s string) int32 {
	i, ok := d.strings[s]
	if ok {
		return i
	}
	if v := valid(s); v != s {
		i = d.string(v)
		d.strings[s] = i
		return i
	}
	i = int32(d.out.StringTable().Len())
	d.out.StringTable().Append(s)
	d.size += entry(len(s))
	d.strings[s] = i
	return i
}

// attribute gives a its key and returns its index.
func (d *dictionary) attribute(key string, a attribute) int32 {
	a.key = d.string(key)
	i, ok := d.attributes[a]
	if ok {
		return i
	}
	if v := valid(a.text); v != a.text {
		i = d.attribute(key, attribute{text: v})
		d.attributes[a] = i
		return i
	}
	i = int32(d.out.AttributeTable().Len())
	out := d.out.AttributeTable().AppendEmpty()
	out.SetKeyStrindex(a.key)
	value := 2
	switch a.kind {
	case text:
		out.Value().SetStr(a.text)
		value = entry(len(a.text))
	case integer:
		out.Value().SetInt(a.number)
		value = 1 + varint(uint64(a.number))
	case boolean:
		out.Value().SetBool(a.number != 0)
	}
	d.size += entry(field(uint64(a.key)) + entry(value))
	d.attributes[a] = i
	return i
}

func (d *dictionary) function(l *samples.Line) int32 {
	f := function{
		name:      d.string(l.Function),
		system:    d.string(l.SystemName),
		file:      d.string(l.File),
		startLine: l.StartLine,
	}
	i, ok := d.functions[f]
	if ok {
		return i
	}
	i = int32(d.out.FunctionTable().Len())
	out := d.out.FunctionTable().AppendEmpty()
	out.SetNameStrindex(f.name)
	out.SetSystemNameStrindex(f.system)
	out.SetFilenameStrindex(f.file)
	out.SetStartLine(f.startLine)
	d.size += entry(field(uint64(f.name)) + field(uint64(f.system)) + field(uint64(f.file)) + field(uint64(f.startLine)))
	d.functions[f] = i
	return i
}

func (d *dictionary) mapping(m *samples.Mapping) int32 {
	if m == nil {
		return 0
	}
	i, ok := d.knownMappings[m]
	if ok {
		return i
	}
	k := mapping{start: m.Start, limit: m.Limit, offset: m.FileOffset, file: d.string(m.Path)}
	if m.BuildID != "" {
		k.gnu = d.attribute(attr.BuildIDGNU, attribute{text: m.BuildID})
	}
	if m.GoBuildID != "" {
		k.golang = d.attribute(attr.BuildIDGo, attribute{text: m.GoBuildID})
	}
	i, ok = d.mappings[k]
	if !ok {
		i = int32(d.out.MappingTable().Len())
		out := d.out.MappingTable().AppendEmpty()
		out.SetMemoryStart(k.start)
		out.SetMemoryLimit(k.limit)
		out.SetFileOffset(k.offset)
		out.SetFilenameStrindex(k.file)
		attributes := 0
		for _, a := range [...]int32{k.gnu, k.golang} {
			if a != 0 {
				out.AttributeIndices().Append(a)
				attributes += varint(uint64(a))
			}
		}
		d.size += entry(field(k.start) + field(k.limit) + field(k.offset) + field(uint64(k.file)) + packed(attributes))
		d.mappings[k] = i
	}
	d.knownMappings[m] = i
	return i
}

func (d *dictionary) location(l *samples.Location) int32 {
	i, ok := d.knownLocations[l]
	if ok {
		return i
	}
	mappingIndex := d.mapping(l.Mapping)
	frameType := int32(0)
	if l.Type != "" {
		frameType = d.attribute(attr.FrameType, attribute{text: string(l.Type)})
	}
	key := binary.LittleEndian.AppendUint32(d.scratch[:0], uint32(mappingIndex))
	key = binary.LittleEndian.AppendUint64(key, l.Address)
	key = binary.LittleEndian.AppendUint32(key, uint32(frameType))
	for j := range l.Lines {
		key = binary.LittleEndian.AppendUint32(key, uint32(d.function(&l.Lines[j])))
		key = binary.LittleEndian.AppendUint64(key, uint64(l.Lines[j].Line))
	}
	d.scratch = key

	i, ok = d.locations[string(key)]
	if !ok {
		i = int32(d.out.LocationTable().Len())
		out := d.out.LocationTable().AppendEmpty()
		out.SetMappingIndex(mappingIndex)
		out.SetAddress(l.Address)
		size := field(uint64(mappingIndex)) + field(l.Address)
		if frameType != 0 {
			out.AttributeIndices().Append(frameType)
			size += packed(varint(uint64(frameType)))
		}
		out.Lines().EnsureCapacity(len(l.Lines))
		for j := range l.Lines {
			f := d.function(&l.Lines[j])
			line := out.Lines().AppendEmpty()
			line.SetFunctionIndex(f)
			line.SetLine(l.Lines[j].Line)
			size += entry(field(uint64(f)) + field(uint64(l.Lines[j].Line)))
		}
		d.size += entry(size)
		d.locations[string(key)] = i
	}
	d.knownLocations[l] = i
	return i
}

func (d *dictionary) stack(s *samples.Stack) int32 {
	i, ok := d.knownStacks[s]
	if ok {
		return i
	}
	for _, l := range s.Locations {
		d.location(l)
	}
	key := d.scratch[:0]
	for _, l := range s.Locations {
		key = binary.LittleEndian.AppendUint32(key, uint32(d.knownLocations[l]))
	}
	d.scratch = key
	i, ok = d.stacks[string(key)]
	if !ok {
		i = int32(d.out.StackTable().Len())
		indices := d.out.StackTable().AppendEmpty().LocationIndices()
		indices.EnsureCapacity(len(s.Locations))
		size := 0
		for _, l := range s.Locations {
			at := d.knownLocations[l]
			indices.Append(at)
			size += varint(uint64(at))
		}
		d.size += entry(packed(size))
		d.stacks[string(key)] = i
	}
	d.knownStacks[s] = i
	return i
}

// link returns the index of a span; 0 is none.
func (d *dictionary) link(l samples.Link) int32 {
	if !l.Valid() {
		return 0
	}
	i, ok := d.links[l]
	if ok {
		return i
	}
	i = int32(d.out.LinkTable().Len())
	out := d.out.LinkTable().AppendEmpty()
	out.SetTraceID(l.TraceID)
	out.SetSpanID(l.SpanID)
	d.size += linkSize
	d.links[l] = i
	return i
}

// sampleBound bounds by how much a sample's stack and attributes may make the
// dictionary grow. It may be above the truth by what the stack's new locations
// have in common, never below.
func (d *dictionary) sampleBound(s *samples.Sample) int {
	n := 3*attributeBound + len(attr.ThreadName) + len(s.Thread.Name) + len(attr.ThreadID) + len(attr.StackTruncated)
	if s.Selected {
		n += attributeBound + len(attr.DotnetSelected)
	}
	if s.AllocType != "" {
		n += attributeBound + len(attr.AllocType) + len(s.AllocType)
	}
	if s.Link.Valid() {
		n += linkSize
	}
	if _, ok := d.knownStacks[s.Stack]; ok {
		return n
	}
	n += 2*lengthBound + len(s.Stack.Locations)*indexBound
	var counted *samples.Mapping
	empty := len(d.knownLocations) == 0 // then the bound decides whether the sample fits at all
	for i, l := range s.Stack.Locations {
		if _, ok := d.knownLocations[l]; ok {
			continue
		}
		if empty && slices.Contains(s.Stack.Locations[:i], l) {
			continue
		}
		n += locationBound(l)
		if l.Mapping != nil && l.Mapping != counted {
			counted = l.Mapping
			if _, ok := d.knownMappings[counted]; !ok {
				n += mappingBound(counted)
			}
		}
	}
	return n
}

const (
	numberBound = 11 // any varint and its tag
	// attributeBound is an attribute without its texts: as an entry, its key
	// and value, and the key's and the value's string entries.
	attributeBound = lengthBound + indexBound + lengthBound + numberBound + lengthBound
	// linkSize is a link as an entry: 16 and 8 bytes of ids.
	linkSize = 2 + (2 + 16) + (2 + 8)
)

func locationBound(l *samples.Location) int {
	n := lengthBound + indexBound + numberBound + lengthBound + indexBound +
		attributeBound + len(attr.FrameType) + len(l.Type)
	for i := range l.Lines {
		line := &l.Lines[i]
		n += lengthBound + indexBound + numberBound +
			lengthBound + 3*indexBound + numberBound +
			3*lengthBound + len(line.Function) + len(line.File)
		if line.SystemName != line.Function {
			n += len(line.SystemName)
		}
	}
	return n
}

func mappingBound(m *samples.Mapping) int {
	return lengthBound + 3*numberBound + indexBound + lengthBound + 2*indexBound +
		lengthBound + len(m.Path) +
		2*attributeBound + len(attr.BuildIDGNU) + len(m.BuildID) + len(attr.BuildIDGo) + len(m.GoBuildID)
}

// varint is the size of a number, marshalled.
func varint(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

// field is the size of a number as a field, which is left out where it is 0.
func field(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + varint(v)
}

// entry is the size of a field that holds size bytes.
func entry(size int) int { return 1 + varint(uint64(size)) + size }

// packed is the size of a field of numbers, which is left out where there are
// none.
func packed(size int) int {
	if size == 0 {
		return 0
	}
	return entry(size)
}
