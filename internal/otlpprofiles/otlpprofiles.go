// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package otlpprofiles builds OTLP profiles that every backend accepts. Each table of
// the dictionary begins with the zero entry, and contains no duplicate or unused
// entries. Samples with equal stacks and attributes are merged into one Sample,
// unless samples have values. In that case, each event has its own Sample. No
// exporter needs to split a request.
package otlpprofiles

import (
	"cmp"
	"crypto/rand"
	"io"
	"iter"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/internal/protosize"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/internal/truncate"
)

// These are the default limits. Pyroscope accepts 16,000 samples and 4 MiB per profile.
// A gRPC server accepts 4 MiB per message. The shipped configurations batch up to 3 MB.
const (
	DefaultMaxSamples      = 8000
	DefaultMaxProfileBytes = 1 << 20
	DefaultMaxRequestBytes = 2 << 20
)

// maxLabel is the maximum length of a text attribute of a sample, in bytes. Backends turn
// these attributes into labels, and Pyroscope rejects a profile with a longer label.
const maxLabel = 2048

// yes is the value of boolean attributes that are true. It is a string, because backends
// show only strings. Boolean attributes that are false are omitted.
const yes = "true"

// Options are the options of a Builder. The zero value selects the
// default of each option.
type Options struct {
	// ScopeName and ScopeVersion identify the instrumentation scope.
	ScopeName, ScopeVersion string
	// Rand is the source of profile ids. If it is nil, crypto/rand is used. If the source
	// fails, the profile has no id.
	Rand io.Reader

	// MaxSamples and MaxProfileBytes limit each Profile. MaxRequestBytes limits each
	// request. Sizes are marshalled sizes. Only the size of a request includes the
	// dictionary. 0 selects the default.
	MaxSamples      int
	MaxProfileBytes int
	MaxRequestBytes int
}

// Tally maps each type to the number of its events.
type Tally map[*samples.Type]int

// Builder builds requests. It keeps its working memory from one batch to the next. It
// is not safe for concurrent use.
type Builder struct {
	opts Options

	request  pprofile.Profiles
	dict     *dictionary.Builder
	size     int // upper bound of the marshalled request without its dictionary
	tally    Tally
	resource *samples.Resource
	scope    pprofile.ScopeProfiles
	group    *profileGroup // group of profile; nil if no profile was begun
	profile  pprofile.Profile
	room     int // bytes left in profile
	index    map[sampleKey]int

	// attributes are the attributes of the sample that Build adds. each is an upper bound on
	// the size of each of the sample's events, and first on the additional size of its first
	// event. describe sets these fields.
	attributes  []attribute
	first, each int
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

// Build yields the batch as requests. Each request has its own dictionary. The tally
// contains the number of events in the request. Events without a stack are omitted, and
// so are events whose stack does not fit into any request. The locations must have been
// resolved. The requests do not refer to the batch. The tally is valid until the next
// request.
//
// If the time of an event is outside the profile's window, the event is moved to the edge
// of the window. Otherwise, a single such timestamp would make backends reject the whole
// request.
func (b *Builder) Build(batch *samples.Batch) iter.Seq2[pprofile.Profiles, Tally] {
	return func(yield func(pprofile.Profiles, Tally) bool) {
		defer b.begin() // releases the batch and the last request
		b.begin()
		all := batch.Samples()
		for _, g := range grouped(batch, all) {
			for _, i := range g.samples {
				s := &all[i]
				if s.Stack == nil || len(s.Stack.Locations) == 0 {
					continue
				}
				for done := 0; done < len(s.Times); {
					b.describe(s)
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

// begin starts an empty request.
func (b *Builder) begin() {
	b.request = pprofile.NewProfiles()
	b.dict.Reset(b.request.Dictionary())
	b.size = protosize.MaxLength // tag and length of the dictionary
	clear(b.tally)
	b.resource, b.group = nil, nil
	clear(b.index)
	clear(b.attributes[:cap(b.attributes)])
}

// add adds the events [from, to) of s. The caller must have checked with
// fits that these events fit.
func (b *Builder) add(g *profileGroup, s *samples.Sample, from, to int) {
	if b.startsProfile(g) {
		b.beginProfile(g)
	}
	k := b.sampleKey(s)
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
		size = b.first + b.each*len(times)
	}
	b.room -= size
	b.size += size
	b.tally[g.typ] += len(times)
}

// MaxLabels is the maximum number of labels of a sample's goroutine.
const MaxLabels = 8

// maxAttributes is the maximum number of attributes of a sample.
const maxAttributes = 7 + MaxLabels

// sampleKey identifies a Sample of a profile. Stacks with equal content share an index, even
// if they belong to different processes.
type sampleKey struct {
	stack, link int32
	attributes  [maxAttributes]int32 // indices; 0 after the last
}

// sampleKey adds a sample's stack, link and attributes to the dictionary.
func (b *Builder) sampleKey(s *samples.Sample) sampleKey {
	k := sampleKey{stack: b.dict.Stack(s.Stack), link: b.dict.Link(s.Link)}
	for i, a := range b.attributes {
		k.attributes[i] = b.dict.Attribute(a.key, a.value)
	}
	return k
}

// describe sets the attributes of a sample and the upper bounds on its size.
func (b *Builder) describe(s *samples.Sample) {
	all := b.attributes[:0]
	text := func(key, value string) {
		if value != "" {
			all = append(all, attribute{key, dictionary.Str(truncate.Cut(value, maxLabel))})
		}
	}
	text(attr.ThreadName, s.Thread.Name)
	if s.Thread.ID != 0 {
		all = append(all, attribute{attr.ThreadID, dictionary.Int(int64(s.Thread.ID))})
	}
	if s.Stack.Truncated {
		text(attr.StackTruncated, yes)
	}
	if s.Selected {
		text(attr.DotnetSelected, yes)
	}
	text(attr.AllocType, s.AllocType)
	if s.Type.Blocked {
		text(attr.Wait, s.Stack.Wait.String())
	}
	text(attr.Transport, s.Transport.String())
	for rest := s.Labels; rest != "" && len(all) < maxAttributes; {
		var key, value string
		key, rest, _ = strings.Cut(rest, "\x00")
		value, rest, _ = strings.Cut(rest, "\x00")
		text(key, value)
	}
	b.attributes = all
	b.first, b.each = sampleBound+len(all)*protosize.MaxIndex, 8
	if s.Type.Valued { // one Sample per event
		b.first, b.each = 0, b.first+valueBound
	}
}

// size returns the marshalled size of a Sample's stack index, link index and attribute
// indices.
func (k sampleKey) size() int {
	attributes := 0
	for _, i := range k.attributes {
		if i != 0 {
			attributes += protosize.Varint(uint64(i))
		}
	}
	return protosize.Number(uint64(k.stack)) + protosize.Number(uint64(k.link)) + protosize.Packed(attributes)
}

// newSample appends a Sample to the profile.
func (b *Builder) newSample(k sampleKey) pprofile.Sample {
	out := b.profile.Samples().AppendEmpty()
	out.SetStackIndex(k.stack)
	out.SetLinkIndex(k.link)
	for _, i := range k.attributes {
		if i != 0 {
			out.AttributeIndices().Append(i)
		}
	}
	return out
}

// beginProfile appends a profile. If the resource of g is not the current
// resource, it also appends a resource.
func (b *Builder) beginProfile(g *profileGroup) {
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

// setAttributes sets all attributes that have a key. Backends reject a whole request if one
// attribute has no key.
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

// These constants are upper bounds on the marshalled sizes of parts of a request.
const (
	// sampleBound is the maximum size of a Sample without its attributes, timestamps and values.
	sampleBound = protosize.MaxLength + 2*protosize.MaxIndex + // tag and length, stack, link
		2*protosize.MaxLength // attributes, timestamps
	// valueBound is the maximum size of one value and one timestamp.
	valueBound  = protosize.MaxLength + 10 + 8
	headerBound = protosize.MaxLength + // tag and length of the profile
		2*(protosize.MaxLength+2*protosize.MaxIndex) + // sample and period type
		9 + 11 + 11 + // time, duration, period
		2 + 16 // id
)

// fits returns how many of n events of s fit into the request. If add would begin a new
// profile, the header of the profile must fit too.
func (b *Builder) fits(g *profileGroup, s *samples.Sample, n int) int {
	room, count := b.room, b.opts.MaxSamples
	need := b.first + b.dictionaryBound(s)
	if b.startsProfile(g) {
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
	return max(0, min(n, left/b.each, (room-b.first)/b.each))
}

// headerOf returns an upper bound on the size of a profile without its samples.
func headerOf(g *profileGroup) int {
	return headerBound + len(g.attributes)*(protosize.MaxLength+protosize.MaxIndex)
}

// startsProfile reports whether add begins a new profile for a sample of g.
func (b *Builder) startsProfile(g *profileGroup) bool {
	return b.group != g || b.profile.Samples().Len() >= b.opts.MaxSamples || b.room < b.first+b.each
}

// typeBound returns the maximum number of bytes that a profile's type and
// attributes add to the dictionary.
func typeBound(g *profileGroup) int {
	t := g.typ
	n := 4*protosize.MaxLength + len(t.Name) + len(t.Unit) + len(t.PeriodName) + len(t.PeriodUnit)
	for _, a := range g.attributes {
		n += dictionary.AttributeBound(a.key, a.value)
	}
	return n
}

// dictionaryBound returns the maximum number of bytes that a sample's stack, attributes
// and link add to the dictionary.
func (b *Builder) dictionaryBound(s *samples.Sample) int {
	n := b.dict.StackBound(s.Stack)
	for _, a := range b.attributes {
		n += dictionary.AttributeBound(a.key, a.value)
	}
	if s.Link.Valid() {
		n += dictionary.LinkSize
	}
	return n
}

// resourceBound returns an upper bound on the size of a resource and its scope.
func (b *Builder) resourceBound(r *samples.Resource) int {
	n := 3*protosize.MaxLength + // the resource as a field, its attributes and its scopes
		3*protosize.MaxLength + len(b.opts.ScopeName) + len(b.opts.ScopeVersion)
	for _, a := range r.Attributes {
		n += 4*protosize.MaxLength + len(a.Key) + 10
		if v, ok := a.Value.(string); ok {
			n += len(v)
		}
	}
	return n
}
