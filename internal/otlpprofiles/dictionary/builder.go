// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dictionary

import (
	"encoding/binary"
	"slices"

	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/internal/protosize"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// Builder fills the dictionary of a request. It compares entries by content,
// because samplers intern entries per process, and two processes may run the same
// code. The Builder keeps its working memory from one request to the next. It is
// not safe for concurrent use.
type Builder struct {
	Appender

	functions map[function]int32
	mappings  map[mapping]int32
	locations map[string]int32 // by encoded content
	stacks    map[string]int32
	links     map[samples.Link]int32

	// The following maps cache the indices of entries by the entry's pointer, so that the
	// content of each entry is compared only once.
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

// NewBuilder returns a builder. Call Reset before other methods.
func NewBuilder() *Builder {
	return &Builder{
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

// Size returns the marshalled size of the dictionary.
func (b *Builder) Size() int { return b.size }

// Reset starts the dictionary of a new request. The new dictionary contains only the zero
// entries.
func (b *Builder) Reset(out pprofile.ProfilesDictionary) {
	clear(b.functions)
	clear(b.mappings)
	clear(b.locations)
	clear(b.stacks)
	clear(b.links)
	clear(b.knownMappings)
	clear(b.knownLocations)
	clear(b.knownStacks)

	AppendZeroEntries(out)
	b.Appender.Reset(out, nil)
	b.functions[function{}] = 0
	b.mappings[mapping{}] = 0
	b.size = 5*protosize.Bytes(0) + // five tables have an empty zero entry; the others contain
		protosize.Bytes(protosize.Bytes(0)) + // the value of an attribute,
		protosize.Bytes(2*protosize.Bytes(0)) // the two ids of a link
}

func (b *Builder) function(l *samples.Line) int32 {
	f := function{
		name:      b.String(l.Function),
		system:    b.String(l.SystemName),
		file:      b.String(l.File),
		startLine: l.StartLine,
	}
	i, ok := b.functions[f]
	if ok {
		return i
	}
	i = int32(b.out.FunctionTable().Len())
	out := b.out.FunctionTable().AppendEmpty()
	out.SetNameStrindex(f.name)
	out.SetSystemNameStrindex(f.system)
	out.SetFilenameStrindex(f.file)
	out.SetStartLine(f.startLine)
	b.size += protosize.Bytes(protosize.Number(uint64(f.name)) + protosize.Number(uint64(f.system)) + protosize.Number(uint64(f.file)) + protosize.Number(uint64(f.startLine)))
	b.functions[f] = i
	return i
}

func (b *Builder) mapping(m *samples.Mapping) int32 {
	if m == nil {
		return 0
	}
	i, ok := b.knownMappings[m]
	if ok {
		return i
	}
	k := mapping{start: m.Start, limit: m.Limit, offset: m.FileOffset, file: b.String(m.Path)}
	if m.BuildID != "" {
		k.gnu = b.Attribute(attr.BuildIDGNU, Str(m.BuildID))
	}
	if m.GoBuildID != "" {
		k.golang = b.Attribute(attr.BuildIDGo, Str(m.GoBuildID))
	}
	i, ok = b.mappings[k]
	if !ok {
		i = int32(b.out.MappingTable().Len())
		out := b.out.MappingTable().AppendEmpty()
		out.SetMemoryStart(k.start)
		out.SetMemoryLimit(k.limit)
		out.SetFileOffset(k.offset)
		out.SetFilenameStrindex(k.file)
		attributes := 0
		for _, a := range [...]int32{k.gnu, k.golang} {
			if a != 0 {
				out.AttributeIndices().Append(a)
				attributes += protosize.Varint(uint64(a))
			}
		}
		b.size += protosize.Bytes(protosize.Number(k.start) + protosize.Number(k.limit) + protosize.Number(k.offset) + protosize.Number(uint64(k.file)) + protosize.Packed(attributes))
		b.mappings[k] = i
	}
	b.knownMappings[m] = i
	return i
}

func (b *Builder) location(l *samples.Location) int32 {
	i, ok := b.knownLocations[l]
	if ok {
		return i
	}
	mappingIndex := b.mapping(l.Mapping)
	frameType := int32(0)
	if l.Type != "" {
		frameType = b.Attribute(attr.FrameType, Str(string(l.Type)))
	}
	key := binary.LittleEndian.AppendUint32(b.scratch[:0], uint32(mappingIndex))
	key = binary.LittleEndian.AppendUint64(key, l.Address)
	key = binary.LittleEndian.AppendUint32(key, uint32(frameType))
	for j := range l.Lines {
		key = binary.LittleEndian.AppendUint32(key, uint32(b.function(&l.Lines[j])))
		key = binary.LittleEndian.AppendUint64(key, uint64(l.Lines[j].Line))
	}
	b.scratch = key

	i, ok = b.locations[string(key)]
	if !ok {
		i = int32(b.out.LocationTable().Len())
		out := b.out.LocationTable().AppendEmpty()
		out.SetMappingIndex(mappingIndex)
		out.SetAddress(l.Address)
		size := protosize.Number(uint64(mappingIndex)) + protosize.Number(l.Address)
		if frameType != 0 {
			out.AttributeIndices().Append(frameType)
			size += protosize.Packed(protosize.Varint(uint64(frameType)))
		}
		out.Lines().EnsureCapacity(len(l.Lines))
		for j := range l.Lines {
			f := b.function(&l.Lines[j])
			line := out.Lines().AppendEmpty()
			line.SetFunctionIndex(f)
			line.SetLine(l.Lines[j].Line)
			size += protosize.Bytes(protosize.Number(uint64(f)) + protosize.Number(uint64(l.Lines[j].Line)))
		}
		b.size += protosize.Bytes(size)
		b.locations[string(key)] = i
	}
	b.knownLocations[l] = i
	return i
}

// Stack returns the index of a stack. The stack's locations must have been resolved.
func (b *Builder) Stack(s *samples.Stack) int32 {
	i, ok := b.knownStacks[s]
	if ok {
		return i
	}
	for _, l := range s.Locations {
		b.location(l)
	}
	key := b.scratch[:0]
	for _, l := range s.Locations {
		key = binary.LittleEndian.AppendUint32(key, uint32(b.knownLocations[l]))
	}
	b.scratch = key
	i, ok = b.stacks[string(key)]
	if !ok {
		i = int32(b.out.StackTable().Len())
		indices := b.out.StackTable().AppendEmpty().LocationIndices()
		indices.EnsureCapacity(len(s.Locations))
		size := 0
		for _, l := range s.Locations {
			at := b.knownLocations[l]
			indices.Append(at)
			size += protosize.Varint(uint64(at))
		}
		b.size += protosize.Bytes(protosize.Packed(size))
		b.stacks[string(key)] = i
	}
	b.knownStacks[s] = i
	return i
}

// Link returns the index of a span's link. If there is no span, Link returns 0.
func (b *Builder) Link(l samples.Link) int32 {
	if !l.Valid() {
		return 0
	}
	i, ok := b.links[l]
	if ok {
		return i
	}
	i = int32(b.out.LinkTable().Len())
	out := b.out.LinkTable().AppendEmpty()
	out.SetTraceID(l.TraceID)
	out.SetSpanID(l.SpanID)
	b.size += LinkSize
	b.links[l] = i
	return i
}

// StackBound returns the maximum number of bytes that Stack adds to the dictionary. If
// several new locations share an entry, StackBound may count the entry more than once.
func (b *Builder) StackBound(s *samples.Stack) int {
	if _, ok := b.knownStacks[s]; ok {
		return 0
	}
	n := 2*protosize.MaxLength + len(s.Locations)*protosize.MaxIndex
	var counted *samples.Mapping
	empty := len(b.knownLocations) == 0 // the bound then decides whether the sample ever fits
	for i, l := range s.Locations {
		if _, ok := b.knownLocations[l]; ok {
			continue
		}
		if empty && slices.Contains(s.Locations[:i], l) {
			continue
		}
		n += locationBound(l)
		if l.Mapping != nil && l.Mapping != counted {
			counted = l.Mapping
			if _, ok := b.knownMappings[counted]; !ok {
				n += mappingBound(counted)
			}
		}
	}
	return n
}

// AttributeBound returns the maximum number of bytes that Attribute
// adds to the dictionary.
func AttributeBound(key string, v Value) int { return attributeBound + len(key) + len(v.text) }

// attributeBound is an upper bound on the marshalled size of an attribute whose strings are
// empty. It covers the entry with the key and the value, and the two strings.
const attributeBound = protosize.MaxLength + protosize.MaxIndex + protosize.MaxLength + protosize.MaxNumber + protosize.MaxLength

// LinkSize is the number of bytes that Link adds for a link with ids of 16 and 8 bytes.
const LinkSize = 2 + (2 + 16) + (2 + 8)

func locationBound(l *samples.Location) int {
	n := protosize.MaxLength + protosize.MaxIndex + protosize.MaxNumber + protosize.MaxLength + protosize.MaxIndex +
		attributeBound + len(attr.FrameType) + len(l.Type)
	for i := range l.Lines {
		line := &l.Lines[i]
		n += protosize.MaxLength + protosize.MaxIndex + protosize.MaxNumber +
			protosize.MaxLength + 3*protosize.MaxIndex + protosize.MaxNumber +
			3*protosize.MaxLength + len(line.Function) + len(line.File)
		if line.SystemName != line.Function {
			n += len(line.SystemName)
		}
	}
	return n
}

func mappingBound(m *samples.Mapping) int {
	return protosize.MaxLength + 3*protosize.MaxNumber + protosize.MaxIndex + protosize.MaxLength + 2*protosize.MaxIndex +
		protosize.MaxLength + len(m.Path) +
		2*attributeBound + len(attr.BuildIDGNU) + len(m.BuildID) + len(attr.BuildIDGo) + len(m.GoBuildID)
}
