// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
)

// pick is a profile of a batch, by its place.
type pick struct {
	resource, scope, profile int32
	// restamp: it leaves with a reason, in place of one that it may have.
	restamp bool
}

// split copies profiles, in the order of the batch, with exactly the part of the
// dictionary that they use: the zero entry of each table, then the others in
// order of first use. The source is not changed and shares nothing with the
// copy. An index beyond its table becomes 0, the entry that says nothing.
func (s *subset) split(src pprofile.Profiles, picks []pick) pprofile.Profiles {
	dst := pprofile.NewProfiles()
	s.begin(src.Dictionary(), dst.Dictionary())
	defer s.end()
	var last pick
	var rp pprofile.ResourceProfiles
	var sp pprofile.ScopeProfiles
	for i, p := range picks {
		from := src.ResourceProfiles().At(int(p.resource))
		if i == 0 || p.resource != last.resource {
			rp = dst.ResourceProfiles().AppendEmpty()
			rp.SetSchemaUrl(from.SchemaUrl())
			rp.Resource().SetDroppedAttributesCount(from.Resource().DroppedAttributesCount())
			copyMap(from.Resource().Attributes(), rp.Resource().Attributes())
		}
		in := from.ScopeProfiles().At(int(p.scope))
		if i == 0 || p.resource != last.resource || p.scope != last.scope {
			sp = rp.ScopeProfiles().AppendEmpty()
			sp.SetSchemaUrl(in.SchemaUrl())
			scope := sp.Scope()
			scope.SetName(in.Scope().Name())
			scope.SetVersion(in.Scope().Version())
			scope.SetDroppedAttributesCount(in.Scope().DroppedAttributesCount())
			copyMap(in.Scope().Attributes(), scope.Attributes())
		}
		last = p
		s.profile(in.Profiles().At(int(p.profile)), sp.Profiles().AppendEmpty(), p.restamp)
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
// table has a list from old index to new, used again for other splits: an entry
// counts only with the number of the split that it was made in.
type subset struct {
	src, dst                                                           pprofile.ProfilesDictionary
	number                                                             uint32
	strings, attributes, functions, mappings, locations, stacks, links []uint64
}

func (s *subset) begin(src, dst pprofile.ProfilesDictionary) {
	dst.StringTable().Append("")
	dst.AttributeTable().AppendEmpty()
	dst.FunctionTable().AppendEmpty()
	dst.MappingTable().AppendEmpty()
	dst.LocationTable().AppendEmpty()
	dst.StackTable().AppendEmpty()
	dst.LinkTable().AppendEmpty()
	s.src, s.dst = src, dst
	if s.number++; s.number == 0 { // it came round: old entries would count
		*s = subset{src: src, dst: dst, number: 1}
	}
	s.strings = table(s.strings, src.StringTable().Len())
	s.attributes = table(s.attributes, src.AttributeTable().Len())
	s.functions = table(s.functions, src.FunctionTable().Len())
	s.mappings = table(s.mappings, src.MappingTable().Len())
	s.locations = table(s.locations, src.LocationTable().Len())
	s.stacks = table(s.stacks, src.StackTable().Len())
	s.links = table(s.links, src.LinkTable().Len())
}

// end lets go of the dictionaries.
func (s *subset) end() { s.src, s.dst = pprofile.ProfilesDictionary{}, pprofile.ProfilesDictionary{} }

func table(t []uint64, n int) []uint64 {
	if n > cap(t) {
		return make([]uint64, n)
	}
	return t[:n]
}

// fresh says whether an entry is still to be copied; if not, at is its place.
// The zero entry is itself in both.
func (s *subset) fresh(table []uint64, i int32) (at int32, copyIt bool) {
	if i <= 0 || int(i) >= len(table) {
		return 0, false
	}
	if e := table[i]; uint32(e>>32) == s.number {
		return int32(uint32(e)), false
	}
	return 0, true
}

// place remembers where an entry is copied to.
func (s *subset) place(table []uint64, i int32, at int) int32 {
	table[i] = uint64(s.number)<<32 | uint64(uint32(at))
	return int32(at)
}

func (s *subset) profile(src, dst pprofile.Profile, restamp bool) {
	src.CopyTo(dst)
	if restamp {
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
	at, copyIt := s.fresh(s.strings, i)
	if copyIt {
		at = s.place(s.strings, i, s.dst.StringTable().Len())
		s.dst.StringTable().Append(s.src.StringTable().At(int(i)))
	}
	return at
}

func (s *subset) attribute(i int32) int32 {
	at, copyIt := s.fresh(s.attributes, i)
	if copyIt {
		at = s.place(s.attributes, i, s.dst.AttributeTable().Len())
		out := s.dst.AttributeTable().AppendEmpty()
		s.src.AttributeTable().At(int(i)).CopyTo(out)
		out.SetKeyStrindex(s.str(out.KeyStrindex()))
		out.SetUnitStrindex(s.str(out.UnitStrindex()))
	}
	return at
}

func (s *subset) function(i int32) int32 {
	at, copyIt := s.fresh(s.functions, i)
	if copyIt {
		at = s.place(s.functions, i, s.dst.FunctionTable().Len())
		out := s.dst.FunctionTable().AppendEmpty()
		s.src.FunctionTable().At(int(i)).CopyTo(out)
		out.SetNameStrindex(s.str(out.NameStrindex()))
		out.SetSystemNameStrindex(s.str(out.SystemNameStrindex()))
		out.SetFilenameStrindex(s.str(out.FilenameStrindex()))
	}
	return at
}

func (s *subset) mapping(i int32) int32 {
	at, copyIt := s.fresh(s.mappings, i)
	if copyIt {
		at = s.place(s.mappings, i, s.dst.MappingTable().Len())
		out := s.dst.MappingTable().AppendEmpty()
		s.src.MappingTable().At(int(i)).CopyTo(out)
		out.SetFilenameStrindex(s.str(out.FilenameStrindex()))
		s.attributeIndices(out.AttributeIndices())
	}
	return at
}

func (s *subset) location(i int32) int32 {
	at, copyIt := s.fresh(s.locations, i)
	if copyIt {
		at = s.place(s.locations, i, s.dst.LocationTable().Len())
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
	at, copyIt := s.fresh(s.stacks, i)
	if copyIt {
		at = s.place(s.stacks, i, s.dst.StackTable().Len())
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
	at, copyIt := s.fresh(s.links, i)
	if copyIt {
		at = s.place(s.links, i, s.dst.LinkTable().Len())
		s.src.LinkTable().At(int(i)).CopyTo(s.dst.LinkTable().AppendEmpty())
	}
	return at
}
