// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package otlpprofiles

import (
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/internal/protosize"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// Upper bounds of the parts of a request, marshalled.
const (
	sampleBound = protosize.MaxLength + protosize.MaxIndex + protosize.MaxLength + 3*protosize.MaxIndex + protosize.MaxLength
	// valueBound is that of one value and one timestamp.
	valueBound  = protosize.MaxLength + 10 + 8
	headerBound = protosize.MaxLength + // the profile as a field
		2*(protosize.MaxLength+2*protosize.MaxIndex) + // sample and period type
		9 + 11 + 11 + // time, duration, period
		2 + 16 // id
)

// boundOf returns the bound of a Sample without its timestamps and value.
func boundOf(s *samples.Sample) int {
	n := sampleBound
	if s.Selected {
		n += protosize.MaxIndex
	}
	if s.AllocType != "" {
		n += protosize.MaxIndex
	}
	if s.Link.Valid() {
		n += protosize.MaxIndex
	}
	return n
}

// sizes returns the bounds of events of s: of the first in addition, and of each.
func sizes(s *samples.Sample) (first, each int) {
	if s.Type.Valued {
		return 0, boundOf(s) + valueBound // a Sample each
	}
	return boundOf(s), 8
}

// fits returns how many of n events of s fit into the request, in a new profile if
// add would begin one.
func (b *Builder) fits(g *profileGroup, s *samples.Sample, n int) int {
	room, count := b.room, b.opts.MaxSamples
	first, each := sizes(s)
	need := first + b.dictionaryBound(s)
	if b.startsProfile(g, s) {
		room = b.opts.MaxProfileBytes - headerOf(g)
		need += headerOf(g) + typeBound(g)
		if b.resource != g.resource {
			need += b.resourceBound(g.resource)
		}
	} else {
		count -= b.profile.Samples().Len()
	}
	if g.typ.Valued {
		n = min(n, count)
	}
	left := b.opts.MaxRequestBytes - b.size - b.dict.Size() - need
	return max(0, min(n, left/each, (room-first)/each))
}

// headerOf returns the bound of a profile without its samples.
func headerOf(g *profileGroup) int {
	return headerBound + len(g.attributes)*(protosize.MaxLength+protosize.MaxIndex)
}

// startsProfile reports whether add begins a new profile for a sample of g.
func (b *Builder) startsProfile(g *profileGroup, s *samples.Sample) bool {
	first, each := sizes(s)
	return b.group != g || b.profile.Samples().Len() >= b.opts.MaxSamples || b.room < first+each
}

// typeBound returns the bound of the bytes that a profile's type and attributes add
// to the dictionary.
func typeBound(g *profileGroup) int {
	t := g.typ
	n := 4*protosize.MaxLength + len(t.Name) + len(t.Unit) + len(t.PeriodName) + len(t.PeriodUnit)
	for _, a := range g.attributes {
		n += dictionary.AttributeBound(a.key, a.value)
	}
	return n
}

// dictionaryBound returns the bound of the bytes that a sample's stack and attributes
// add to the dictionary.
func (b *Builder) dictionaryBound(s *samples.Sample) int {
	n := dictionary.AttributeBound(attr.ThreadName, dictionary.Str(s.Thread.Name)) +
		dictionary.AttributeBound(attr.ThreadID, dictionary.Int(0)) +
		dictionary.AttributeBound(attr.StackTruncated, dictionary.True())
	if s.Selected {
		n += dictionary.AttributeBound(attr.DotnetSelected, dictionary.True())
	}
	if s.AllocType != "" {
		n += dictionary.AttributeBound(attr.AllocType, dictionary.Str(s.AllocType))
	}
	if s.Link.Valid() {
		n += dictionary.LinkSize
	}
	return n + b.dict.StackBound(s.Stack)
}

// resourceBound returns the bound of a resource and its scope.
func (b *Builder) resourceBound(r *samples.Resource) int {
	n := 3*protosize.MaxLength + // as a field, its attributes, its list of scopes
		3*protosize.MaxLength + len(b.opts.ScopeName) + len(b.opts.ScopeVersion)
	for _, a := range r.Attributes {
		n += 4*protosize.MaxLength + len(a.Key) + 10
		if v, ok := a.Value.(string); ok {
			n += len(v)
		}
	}
	return n
}
