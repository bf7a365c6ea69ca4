// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
)

// fate is what happens to a profile.
type fate uint8

const (
	dropped fate = iota
	kept         // leaves as it came
	stamped      // leaves with a reason, in place of one that it may have
)

// split copies the profiles that are not dropped, by their number in order, with
// exactly the part of the dictionary that they use: the zero entry of each
// table, then the others in order of first use. The source is not changed and
// shares nothing with the copy. An index beyond its table becomes 0, the entry
// that says nothing.
func split(src pprofile.Profiles, fateOf func(profile int) fate) pprofile.Profiles {
	dst := pprofile.NewProfiles()
	s := newSubset(src.Dictionary(), dst.Dictionary())
	n := 0
	for _, rp := range src.ResourceProfiles().All() {
		var rpOut pprofile.ResourceProfiles
		rpMade := false
		for _, sp := range rp.ScopeProfiles().All() {
			var spOut pprofile.ScopeProfiles
			spMade := false
			for _, p := range sp.Profiles().All() {
				fate := fateOf(n)
				n++
				if fate == dropped {
					continue
				}
				if !rpMade {
					rpMade = true
					rpOut = dst.ResourceProfiles().AppendEmpty()
					rpOut.SetSchemaUrl(rp.SchemaUrl())
					rpOut.Resource().SetDroppedAttributesCount(rp.Resource().DroppedAttributesCount())
					copyMap(rp.Resource().Attributes(), rpOut.Resource().Attributes())
				}
				if !spMade {
					spMade = true
					spOut = rpOut.ScopeProfiles().AppendEmpty()
					spOut.SetSchemaUrl(sp.SchemaUrl())
					scope := spOut.Scope()
					scope.SetName(sp.Scope().Name())
					scope.SetVersion(sp.Scope().Version())
					scope.SetDroppedAttributesCount(sp.Scope().DroppedAttributesCount())
					copyMap(sp.Scope().Attributes(), scope.Attributes())
				}
				s.profile(p, spOut.Profiles().AppendEmpty(), fate)
			}
		}
	}
	return dst
}

// copyMap copies attribute by attribute: what was received with references into
// the source's dictionary would keep them through a copy of the whole map.
func copyMap(src, dst pcommon.Map) {
	dst.EnsureCapacity(src.Len())
	for k, v := range src.All() {
		v.CopyTo(dst.PutEmpty(k))
	}
}

// subset builds a dictionary from the parts of another that are asked for. Each
// table has a list from old index to new; 0 stands for not copied yet, and for
// the zero entry, which is itself in both.
type subset struct {
	src, dst                                                           pprofile.ProfilesDictionary
	strings, attributes, functions, mappings, locations, stacks, links []int32
}

func newSubset(src, dst pprofile.ProfilesDictionary) *subset {
	dst.StringTable().Append("")
	dst.AttributeTable().AppendEmpty()
	dst.FunctionTable().AppendEmpty()
	dst.MappingTable().AppendEmpty()
	dst.LocationTable().AppendEmpty()
	dst.StackTable().AppendEmpty()
	dst.LinkTable().AppendEmpty()
	return &subset{
		src: src, dst: dst,
		strings:    make([]int32, src.StringTable().Len()),
		attributes: make([]int32, src.AttributeTable().Len()),
		functions:  make([]int32, src.FunctionTable().Len()),
		mappings:   make([]int32, src.MappingTable().Len()),
		locations:  make([]int32, src.LocationTable().Len()),
		stacks:     make([]int32, src.StackTable().Len()),
		links:      make([]int32, src.LinkTable().Len()),
	}
}

// fresh says whether an entry is still to be copied; if not, at is its place.
func fresh(table []int32, i int32) (at int32, copyIt bool) {
	if i <= 0 || int(i) >= len(table) {
		return 0, false
	}
	return table[i], table[i] == 0
}

func (s *subset) profile(src, dst pprofile.Profile, fate fate) {
	src.CopyTo(dst)
	if fate == stamped {
		dst.AttributeIndices().RemoveIf(s.isReason)
	}
	s.valueType(dst.SampleType())
	s.valueType(dst.PeriodType())
	s.attributeIndices(dst.AttributeIndices())
	for _, sample := range dst.Samples().All() {
		sample.SetStackIndex(s.stack(sample.StackIndex()))
		sample.SetLinkIndex(s.link(sample.LinkIndex()))
		s.attributeIndices(sample.AttributeIndices())
	}
}

func (s *subset) valueType(v pprofile.ValueType) {
	v.SetTypeStrindex(s.str(v.TypeStrindex()))
	v.SetUnitStrindex(s.str(v.UnitStrindex()))
}

// attributeIndices points indices at the new table, in place.
func (s *subset) attributeIndices(indices pcommon.Int32Slice) {
	for i, old := range indices.All() {
		indices.SetAt(i, s.attribute(old))
	}
}

// isReason says whether an attribute of the source is one that a gate stamps.
func (s *subset) isReason(i int32) bool {
	if i < 0 || int(i) >= len(s.attributes) {
		return false
	}
	key := s.src.AttributeTable().At(int(i)).KeyStrindex()
	return key > 0 && int(key) < len(s.strings) && isReason(s.src.StringTable().At(int(key)))
}

func (s *subset) str(i int32) int32 {
	at, copyIt := fresh(s.strings, i)
	if copyIt {
		at = int32(s.dst.StringTable().Len())
		s.strings[i] = at
		s.dst.StringTable().Append(s.src.StringTable().At(int(i)))
	}
	return at
}

func (s *subset) attribute(i int32) int32 {
	at, copyIt := fresh(s.attributes, i)
	if copyIt {
		at = int32(s.dst.AttributeTable().Len())
		s.attributes[i] = at
		out := s.dst.AttributeTable().AppendEmpty()
		s.src.AttributeTable().At(int(i)).CopyTo(out)
		out.SetKeyStrindex(s.str(out.KeyStrindex()))
		out.SetUnitStrindex(s.str(out.UnitStrindex()))
	}
	return at
}

func (s *subset) function(i int32) int32 {
	at, copyIt := fresh(s.functions, i)
	if copyIt {
		at = int32(s.dst.FunctionTable().Len())
		s.functions[i] = at
		out := s.dst.FunctionTable().AppendEmpty()
		s.src.FunctionTable().At(int(i)).CopyTo(out)
		out.SetNameStrindex(s.str(out.NameStrindex()))
		out.SetSystemNameStrindex(s.str(out.SystemNameStrindex()))
		out.SetFilenameStrindex(s.str(out.FilenameStrindex()))
	}
	return at
}

func (s *subset) mapping(i int32) int32 {
	at, copyIt := fresh(s.mappings, i)
	if copyIt {
		at = int32(s.dst.MappingTable().Len())
		s.mappings[i] = at
		out := s.dst.MappingTable().AppendEmpty()
		s.src.MappingTable().At(int(i)).CopyTo(out)
		out.SetFilenameStrindex(s.str(out.FilenameStrindex()))
		s.attributeIndices(out.AttributeIndices())
	}
	return at
}

func (s *subset) location(i int32) int32 {
	at, copyIt := fresh(s.locations, i)
	if copyIt {
		at = int32(s.dst.LocationTable().Len())
		s.locations[i] = at
		out := s.dst.LocationTable().AppendEmpty()
		s.src.LocationTable().At(int(i)).CopyTo(out)
		out.SetMappingIndex(s.mapping(out.MappingIndex()))
		for _, line := range out.Lines().All() {
			line.SetFunctionIndex(s.function(line.FunctionIndex()))
		}
		s.attributeIndices(out.AttributeIndices())
	}
	return at
}

func (s *subset) stack(i int32) int32 {
	at, copyIt := fresh(s.stacks, i)
	if copyIt {
		at = int32(s.dst.StackTable().Len())
		s.stacks[i] = at
		out := s.dst.StackTable().AppendEmpty()
		s.src.StackTable().At(int(i)).CopyTo(out)
		locations := out.LocationIndices()
		for j, old := range locations.All() {
			locations.SetAt(j, s.location(old))
		}
	}
	return at
}

func (s *subset) link(i int32) int32 {
	at, copyIt := fresh(s.links, i)
	if copyIt {
		at = int32(s.dst.LinkTable().Len())
		s.links[i] = at
		s.src.LinkTable().At(int(i)).CopyTo(s.dst.LinkTable().AppendEmpty())
	}
	return at
}
