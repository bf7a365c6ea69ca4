// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package otlpprofiles turns samples into OTLP profiles of the shape that every
// backend accepts: zero entries first in each table of the dictionary, nothing
// twice and nothing unused in it, one Sample per stack and attribute set, and
// requests small enough that no exporter needs to split them.
package otlpprofiles

import (
	"cmp"
	"crypto/rand"
	"io"
	"iter"
	"math"
	"slices"
	"unicode/utf8"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/internal/protosize"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// The limits that hold where Options leaves them at 0. Pyroscope takes 16,000
// samples and 4 MiB a profile, a gRPC server 4 MiB a message, and the shipped
// configurations batch up to 3 MB.
const (
	DefaultMaxSamples      = 8000
	DefaultMaxProfileBytes = 1 << 20
	DefaultMaxRequestBytes = 2 << 20
)

// maxLabel is how long a text attribute of a sample is at most. Backends make
// labels of them, and Pyroscope refuses a profile for one longer than that.
const maxLabel = 2048

// label is a text cut to the longest that a label may have.
func label(s string) string {
	if len(s) <= maxLabel {
		return s
	}
	end := maxLabel
	for end > maxLabel-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// Options say how a Builder builds. The zero value is good.
type Options struct {
	// ScopeName and ScopeVersion name the instrumentation scope.
	ScopeName, ScopeVersion string
	// Rand gives the profile ids; nil is crypto/rand. A profile whose id cannot
	// be read goes without.
	Rand io.Reader

	// MaxSamples and MaxProfileBytes (as marshalled, without the dictionary) are
	// the most of one Profile, MaxRequestBytes (with the dictionary) the most of
	// one request; 0 is the default.
	MaxSamples      int
	MaxProfileBytes int
	MaxRequestBytes int
}

// Tally is numbers of events, by what they are of.
type Tally map[*samples.Type]int

// Builder builds requests. It keeps its working memory from one batch to the
// next and is not safe for concurrent use.
type Builder struct {
	opts Options

	request  pprofile.Profiles
	dict     *dictionary.Builder
	size     int // of the request without its dictionary: at least as marshalled
	tally    Tally
	resource *samples.Resource
	scope    pprofile.ScopeProfiles
	group    *group // what profile is of; nil: none is begun
	profile  pprofile.Profile
	room     int // bytes left in profile
	index    map[sampleKey]int
}

// group is the samples that belong into one profile, as far as the limits let
// them.
type group struct {
	groupKey
	resourceOrder int
	samples       []int
	// start and end are what was captured: every timestamp is in [start, end).
	start, end int64
	attributes []attribute // of the profile
}

type attribute struct {
	key   string
	value dictionary.Value
}

type groupKey struct {
	resource *samples.Resource
	typ      *samples.Type
	period   int64
	window   *samples.Window
}

// sampleKey tells the Samples of a profile apart: stacks of equal content are
// one stack here, wherever the sampler interned them.
type sampleKey struct {
	stack, link                              int32
	name, id, truncated, selected, allocated int32
}

// size is what a Sample with the key takes for it, marshalled.
func (k sampleKey) size() int {
	attributes := 0
	for _, i := range k.attributes() {
		if i != 0 {
			attributes += protosize.Varint(uint64(i))
		}
	}
	return protosize.Number(uint64(k.stack)) + protosize.Number(uint64(k.link)) + protosize.Packed(attributes)
}

func (k sampleKey) attributes() [5]int32 {
	return [...]int32{k.name, k.id, k.truncated, k.selected, k.allocated}
}

// NewBuilder returns a builder.
func NewBuilder(opts Options) *Builder {
	opts.MaxSamples = cmp.Or(opts.MaxSamples, DefaultMaxSamples)
	opts.MaxProfileBytes = cmp.Or(opts.MaxProfileBytes, DefaultMaxProfileBytes)
	opts.MaxRequestBytes = cmp.Or(opts.MaxRequestBytes, DefaultMaxRequestBytes)
	if opts.Rand == nil {
		opts.Rand = rand.Reader
	}
	return &Builder{opts: opts, dict: dictionary.NewBuilder(), index: make(map[sampleKey]int), tally: make(Tally)}
}

// Build yields the batch as requests, each with a dictionary of its own, and
// with each the events in it. Together they hold the batch's events, except
// those without a stack and those whose stack alone is larger than a request.
// The locations must have been resolved; nothing of the batch is referred to
// afterwards. The tally is good until the next request is asked for.
//
// An event outside of its profile's window is moved to the window's edge, since
// backends refuse the whole request for one such timestamp.
func (b *Builder) Build(batch *samples.Batch) iter.Seq2[pprofile.Profiles, Tally] {
	return func(yield func(pprofile.Profiles, Tally) bool) {
		defer b.begin() // lets go of the batch and of what was yielded
		b.begin()
		all := batch.Samples()
		for _, g := range grouped(batch, all) {
			for _, i := range g.samples {
				s := &all[i]
				if s.Stack == nil || len(s.Stack.Locations) == 0 {
					continue
				}
				for done := 0; done < len(s.Times); {
					n := b.fits(g, s, len(s.Times)-done)
					if n > 0 {
						b.add(g, s, done, done+n)
						done += n
						continue
					}
					if len(b.tally) == 0 {
						break
					}
					if !yield(b.request, b.tally) {
						return
					}
					b.begin()
				}
			}
		}
		if len(b.tally) > 0 {
			yield(b.request, b.tally)
		}
	}
}

// grouped sorts samples into profiles: by resource, then by what is measured,
// both in order of first use.
func grouped(batch *samples.Batch, all []samples.Sample) []*group {
	var groups []*group
	index := make(map[groupKey]*group)
	resources := make(map[*samples.Resource]int)
	for i := range all {
		k := groupKey{all[i].Resource, all[i].Type, all[i].Period, all[i].Window}
		g := index[k]
		if g == nil {
			order, seen := resources[k.resource]
			if !seen {
				order = len(resources)
				resources[k.resource] = order
			}
			g = &group{groupKey: k, resourceOrder: order, start: batch.Start, end: max(batch.End, batch.Start+1)}
			lost := int64(0) // events of the sampler that the kernel dropped, of all resources
			switch {
			case k.window != nil:
				g.start, g.end = k.window.Start, max(k.window.End, k.window.Start+1)
			case k.typ.Sent:
				g.start, g.end = math.MaxInt64, 0
			default:
				lost = batch.Lost(k.typ)
			}
			g.attributes = profileAttributes(k.typ, lost)
			index[k] = g
			groups = append(groups, g)
		}
		g.samples = append(g.samples, i)
		if k.typ.Sent && k.window == nil {
			g.captured(all[i].Times)
		}
	}
	slices.SortStableFunc(groups, func(a, b *group) int { return cmp.Compare(a.resourceOrder, b.resourceOrder) })
	return groups
}

// profileAttributes returns the attributes of profiles of a type.
func profileAttributes(t *samples.Type, lost int64) (all []attribute) {
	if t.Unscaled {
		all = append(all, attribute{attr.Unscaled, dictionary.True()})
	}
	if t.Scaled != "" {
		all = append(all, attribute{attr.Scaled, dictionary.Str(t.Scaled)})
	}
	if t.Spread {
		all = append(all, attribute{attr.Spread, dictionary.True()})
	}
	if lost > 0 {
		all = append(all, attribute{attr.Lost, dictionary.Int(lost)})
	}
	return all
}

// captured widens a group's window by what the times of its events tell. A
// sample that stands for a period of time stands for the one before it, so that
// the windows of samples at a steady rate follow each other without a hole.
func (g *group) captured(times []int64) {
	before := int64(0)
	if !g.typ.Valued && g.typ.PeriodUnit == "nanoseconds" {
		before = g.period - 1
	}
	for _, t := range times {
		g.start = min(g.start, max(t-before, min(t, 1)))
		g.end = max(g.end, t+1)
	}
}

// begin starts an empty request.
func (b *Builder) begin() {
	b.request = pprofile.NewProfiles()
	b.dict.Reset(b.request.Dictionary())
	b.size = protosize.MaxLength // of the dictionary as a field
	clear(b.tally)
	b.resource, b.group = nil, nil
	clear(b.index)
}

// The most that the parts of a request add to what they hold, marshalled. A
// request has fewer than 2^28 bytes, so a length or an index takes at most four
// bytes, and one its tag.
const (
	sampleBound = protosize.MaxLength + protosize.MaxIndex + protosize.MaxLength + 3*protosize.MaxIndex + protosize.MaxLength
	// valueBound is a sample's one value and one timestamp.
	valueBound  = protosize.MaxLength + 10 + 8
	headerBound = protosize.MaxLength + // the profile as a field
		2*(protosize.MaxLength+2*protosize.MaxIndex) + // sample and period type
		9 + 11 + 11 + // time, duration, period
		2 + 16 // id
)

// boundOf bounds a Sample without its timestamps and value, marshalled.
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

// sizes bounds what n events of s take: at first, and each.
func sizes(s *samples.Sample) (first, each int) {
	if s.Type.Valued {
		return 0, boundOf(s) + valueBound // a Sample each
	}
	return boundOf(s), 8
}

// fits reports how many of n events of s fit into the request, in a profile
// that it may have to begin for them.
func (b *Builder) fits(g *group, s *samples.Sample, n int) int {
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

// headerOf bounds a profile without its samples.
func headerOf(g *group) int {
	return headerBound + len(g.attributes)*(protosize.MaxLength+protosize.MaxIndex)
}

// startsProfile reports whether a sample of g cannot go into the current
// profile.
func (b *Builder) startsProfile(g *group, s *samples.Sample) bool {
	first, each := sizes(s)
	return b.group != g || b.profile.Samples().Len() >= b.opts.MaxSamples || b.room < first+each
}

// typeBound bounds the bytes that a profile's type and attributes add to the
// dictionary.
func typeBound(g *group) int {
	t := g.typ
	n := 4*protosize.MaxLength + len(t.Name) + len(t.Unit) + len(t.PeriodName) + len(t.PeriodUnit)
	for _, a := range g.attributes {
		n += dictionary.AttributeBound(a.key, a.value)
	}
	return n
}

// dictionaryBound bounds the bytes that a sample's stack and attributes add to the
// dictionary.
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

// resourceBound bounds a resource and its scope, marshalled.
func (b *Builder) resourceBound(r *samples.Resource) int {
	n := 3*protosize.MaxLength + // as a field, its attributes' owner, its scope's list
		3*protosize.MaxLength + len(b.opts.ScopeName) + len(b.opts.ScopeVersion)
	for _, a := range r.Attributes {
		n += 4*protosize.MaxLength + len(a.Key) + 10
		if v, ok := a.Value.(string); ok {
			n += len(v)
		}
	}
	return n
}

// add adds the events from and up to to of s, which fits has said yes to.
func (b *Builder) add(g *group, s *samples.Sample, from, to int) {
	if b.startsProfile(g, s) {
		b.beginProfile(g)
	}
	k := sampleKey{stack: b.dict.Stack(s.Stack), link: b.dict.Link(s.Link)}
	if s.Thread.Name != "" {
		k.name = b.dict.Attribute(attr.ThreadName, dictionary.Str(label(s.Thread.Name)))
	}
	if s.Thread.ID != 0 {
		k.id = b.dict.Attribute(attr.ThreadID, dictionary.Int(int64(s.Thread.ID)))
	}
	if s.Stack.Truncated {
		k.truncated = b.dict.Attribute(attr.StackTruncated, dictionary.True())
	}
	if s.Selected {
		k.selected = b.dict.Attribute(attr.DotnetSelected, dictionary.True())
	}
	if s.AllocType != "" {
		k.allocated = b.dict.Attribute(attr.AllocType, dictionary.Str(label(s.AllocType)))
	}

	times := s.Times[from:to]
	size := 0
	if s.Type.Valued {
		for i, t := range times {
			v := s.Values[from+i]
			out := b.newSample(k)
			out.Values().Append(v)
			out.TimestampsUnixNano().Append(g.within(t))
			size += protosize.Bytes(k.size() + protosize.Packed(protosize.Varint(uint64(v))) + protosize.Packed(8))
		}
	} else {
		i, seen := b.index[k]
		if !seen {
			i = b.profile.Samples().Len()
			b.index[k] = i
			b.newSample(k)
		}
		stamps := b.profile.Samples().At(i).TimestampsUnixNano()
		stamps.EnsureCapacity(stamps.Len() + len(times))
		for _, t := range times {
			stamps.Append(g.within(t))
		}
		size = boundOf(s) + 8*len(times)
	}
	b.room -= size
	b.size += size
	b.tally[g.typ] += len(times)
}

// within is a time in the group's window.
func (g *group) within(t int64) uint64 { return uint64(min(max(t, g.start), g.end-1)) }

func (b *Builder) newSample(k sampleKey) pprofile.Sample {
	out := b.profile.Samples().AppendEmpty()
	out.SetStackIndex(k.stack)
	out.SetLinkIndex(k.link)
	for _, i := range k.attributes() {
		if i != 0 {
			out.AttributeIndices().Append(i)
		}
	}
	return out
}

func (b *Builder) beginProfile(g *group) {
	if b.resource != g.resource {
		b.resource = g.resource
		b.size += b.resourceBound(g.resource)
		rp := b.request.ResourceProfiles().AppendEmpty()
		setAttributes(rp.Resource().Attributes(), g.resource.Attributes)
		b.scope = rp.ScopeProfiles().AppendEmpty()
		b.scope.Scope().SetName(b.opts.ScopeName)
		b.scope.Scope().SetVersion(b.opts.ScopeVersion)
	}
	b.group = g
	clear(b.index)
	b.profile = b.scope.Profiles().AppendEmpty()
	b.profile.SetTime(pcommon.Timestamp(g.start))
	b.profile.SetDurationNano(uint64(g.end - g.start))
	b.profile.SetPeriod(g.period)
	b.profile.SampleType().SetTypeStrindex(b.dict.String(g.typ.Name))
	b.profile.SampleType().SetUnitStrindex(b.dict.String(g.typ.Unit))
	b.profile.PeriodType().SetTypeStrindex(b.dict.String(g.typ.PeriodName))
	b.profile.PeriodType().SetUnitStrindex(b.dict.String(g.typ.PeriodUnit))
	for _, a := range g.attributes {
		b.profile.AttributeIndices().Append(b.dict.Attribute(a.key, a.value))
	}
	var id pprofile.ProfileID
	if _, err := io.ReadFull(b.opts.Rand, id[:]); err == nil {
		b.profile.SetProfileID(id)
	}
	b.room = b.opts.MaxProfileBytes - headerOf(g)
	b.size += headerOf(g)
}

// setAttributes leaves out what has no key: backends refuse a whole request
// for one such attribute.
func setAttributes(to pcommon.Map, attributes []samples.Attribute) {
	to.EnsureCapacity(len(attributes))
	for _, a := range attributes {
		if a.Key == "" {
			continue
		}
		switch v := a.Value.(type) {
		case string:
			to.PutStr(dictionary.ValidUTF8(a.Key), dictionary.ValidUTF8(v))
		case int64:
			to.PutInt(dictionary.ValidUTF8(a.Key), v)
		case bool:
			to.PutBool(dictionary.ValidUTF8(a.Key), v)
		}
	}
}
