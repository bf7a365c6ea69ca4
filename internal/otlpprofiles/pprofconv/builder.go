// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package pprofconv converts OTLP profiles to pprof profiles. A Builder merges the profiles
// of one type from any number of requests.
package pprofconv

import (
	"cmp"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/truncate"
)

// Builder builds a pprof profile. Samples with the same stack and labels are merged. The
// profile's size therefore depends on the number of different samples, not on time.
type Builder struct {
	out *profile.Profile
	// events is the number of timestamps of the added samples. Each
	// sample counts at least once.
	events int
	// Incomplete is the number of events whose stack does not reach the entry
	// function of the thread. LastIncomplete is the time of the last such event,
	// in nanoseconds since 1970.
	Incomplete     int
	LastIncomplete int64
	// CPUTime is the CPU time of the processes according to the kernel. It covers only
	// profiles that contain this time. CPUSampled is the CPU time that the samples of
	// these profiles represent. Both times are in nanoseconds.
	CPUTime, CPUSampled int64
	// size is the estimated memory of the builder, in bytes.
	size int

	functions map[profile.Function]*profile.Function // by content, with the id 0
	mappings  map[profile.Mapping]*profile.Mapping   // by content, with the id 0
	locations map[string]*profile.Location
	samples   map[string]*profile.Sample
	labels    map[label]int // indices in labelTable, plus 1
	comments  map[string]struct{}
	end       int64
	scratch   []byte

	labelTable    []label
	profileLabels []string // Options.Labels
}

// label is an attribute of samples. Its value is a string or a number.
type label struct {
	key, text string
	number    int64
	isNumber  bool
}

// These constants estimate the memory of one entry of each kind, in bytes, without its
// strings and slices. They include the structure itself, its entries in maps and tables,
// and the rounding by the allocator.
const (
	builderSize  = 4 << 10
	functionSize = 256
	mappingSize  = 384
	locationSize = 288
	lineSize     = 40
	sampleSize   = 320
	labelSize    = 400 // a label of a sample, with its own maps and slices
	textSize     = 160 // a comment, or a label shared by samples
)

// These limits apply to one sample or profile. They are needed because a request may refer
// to one entry of its dictionary millions of times.
const (
	maxText     = 8 << 10 // bytes of a text, such as a name from a program file
	maxDepth    = 4096    // frames of a stack; outer frames are dropped
	maxLines    = 128     // functions of a location
	maxLabels   = 64      // labels of a sample
	maxComments = 100
)

// Cut truncates a string to 8 KiB. The result does not keep the whole string in memory.
func Cut(s string) string { return truncate.Cut(s, maxText) }

// TextOf returns an attribute's value as a string that is truncated to 8 KiB. For lists,
// maps and bytes, TextOf returns false.
func TextOf(v pcommon.Value) (string, bool) {
	switch v.Type() {
	case pcommon.ValueTypeStr, pcommon.ValueTypeInt, pcommon.ValueTypeDouble, pcommon.ValueTypeBool:
		return Cut(v.AsString()), true
	default:
		return "", false
	}
}

// unknownFile is the filename of a mapping without a filename.
const unknownFile = "[unknown]"

// countsPeriods reports whether each sample is an event that represents one period.
func countsPeriods(t dictionary.ProfileType) bool {
	return t.Sample == "samples" && t.Unit == "count" && t.Period != ""
}

// TypeOf returns the type of a profile. The strings of the type are truncated to 8 KiB.
func TypeOf(d dictionary.Reader, p pprofile.Profile) dictionary.ProfileType {
	t := d.ProfileType(p)
	return dictionary.ProfileType{Sample: Cut(t.Sample), Unit: Cut(t.Unit), Period: Cut(t.Period), PeriodUnit: Cut(t.PeriodUnit)}
}

// TypeName returns the name of a type in configurations and files. For sampled events,
// this is the name of the period, such as cpu. For all other types, it is the type's own
// name, such as off_cpu or alloc_space.
func TypeName(t dictionary.ProfileType) string {
	if countsPeriods(t) {
		return t.Period
	}
	return t.Sample
}

// Options are the options of a builder.
type Options struct {
	// Origin is the value of the attribute hotprofile.origin of the profiles.
	Origin string
	// Labels are the keys of profile attributes that become labels of the samples instead
	// of comments. Samples are not merged if the values of their labels differ.
	Labels []string
}

// NewBuilder returns a Builder for profiles of type t.
func NewBuilder(t dictionary.ProfileType, o Options) *Builder {
	b := &Builder{
		out: &profile.Profile{
			SampleType: []*profile.ValueType{{Type: t.Sample, Unit: t.Unit}},
			PeriodType: &profile.ValueType{Type: t.Period, Unit: t.PeriodUnit},
		},
		size:      builderSize,
		functions: make(map[profile.Function]*profile.Function),
		mappings:  make(map[profile.Mapping]*profile.Mapping),
		locations: make(map[string]*profile.Location),
		samples:   make(map[string]*profile.Sample),
		labels:    make(map[label]int),
		comments:  make(map[string]struct{}),

		profileLabels: o.Labels,
	}
	if countsPeriods(t) {
		// There are two values, as in Go's CPU profiles: a count and a time.
		b.out.SampleType = append(b.out.SampleType, &profile.ValueType{Type: t.Period, Unit: t.PeriodUnit})
	}
	if o.Origin != "" {
		b.comment(attr.Origin + "=" + o.Origin)
	}
	return b
}

// Addition is the result of adding a profile or a part of it.
type Addition struct {
	// Next is the index of the first sample that was not added.
	Next int
	// Malformed is the number of events that were skipped because they refer to missing
	// entries of the dictionary. Sum is the sum of the values of all other events.
	Malformed int
	Sum       float64
}

// Size returns the estimated memory of the builder, in bytes.
func (b *Builder) Size() int { return b.size }

// Events returns the number of added events. A sample counts once per
// timestamp, but at least once.
func (b *Builder) Events() int { return b.events }

// Add adds the samples of a part, beginning with the sample at index from. The part must
// have the type of the builder. Add stops when the builder has grown by more than room
// bytes. attributes is the result of Attributes for the profile.
func (b *Builder) Add(d dictionary.Reader, p Part, attributes map[string]string, from, room int) (a Addition) {
	if b.out.Period == 0 {
		b.out.Period = p.Period()
	}
	start, end := p.Span()
	if start != 0 && (b.out.TimeNanos == 0 || start < b.out.TimeNanos) {
		b.out.TimeNanos = start
	}
	b.end = max(b.end, end)
	before := b.size
	c := converter{b: b, d: d, locations: make(map[int32]*profile.Location), labels: make(map[int32]int)}
	charged, _ := strconv.ParseInt(attributes[attr.CPUTime], 10, 64)
	if from == 0 && charged > 0 {
		b.CPUTime = min(b.CPUTime+charged, math.MaxInt64/2)
	}
	for k, v := range attributes {
		if k != attr.CPUTime && !slices.Contains(b.profileLabels, k) {
			b.comment(k + "=" + v)
		}
	}
	for _, k := range b.profileLabels {
		if v := attributes[k]; v != "" {
			c.common = append(c.common, b.labelID(label{key: k, text: v}))
		}
	}
	a.Next = from
	for ; a.Next < p.Len() && (a.Next == from || b.size-before <= room); a.Next++ {
		s, value, n := p.at(a.Next)
		if c.sample(s, value, p.Period()) {
			b.events += n
			a.Sum += float64(value)
			if c.incomplete {
				b.Incomplete += n
				last := end
				if at := s.TimestampsUnixNano(); at.Len() > 0 {
					last = int64(slices.Max(at.AsRaw()))
				}
				b.LastIncomplete = max(b.LastIncomplete, last)
			}
		} else {
			a.Malformed += n
		}
	}
	if charged > 0 {
		b.CPUSampled += int64(a.Sum) * p.Period()
	}
	return a
}

// Attributes returns at most 100 attributes of a profile whose keys have hotprofile's
// prefix. The attributes become comments of the profile or labels of the samples.
func Attributes(d dictionary.Reader, p pprofile.Profile) map[string]string {
	attributes := make(map[string]string)
	for k, v := range d.Attributes(p.AttributeIndices()) {
		if !strings.HasPrefix(k, attr.Prefix) || len(attributes) == maxComments {
			continue
		}
		k = Cut(k)
		if _, seen := attributes[k]; seen {
			continue
		}
		if text, ok := TextOf(v); ok {
			attributes[k] = text
		}
	}
	return attributes
}

// comment adds a line to the comments of the profile. If the comments already contain the
// line, or if there are maxComments comments, comment does nothing.
func (b *Builder) comment(line string) {
	line = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, line)
	if _, ok := b.comments[line]; ok || len(b.comments) >= maxComments {
		return
	}
	b.comments[line] = struct{}{}
	b.size += len(line) + textSize
}

// Finish completes and returns the profile. executable is the path of the program. If the
// path was removed, executable is the name of the program. The mapping of the program
// comes first, because pprof treats the first mapping as the program.
func (b *Builder) Finish(executable string) *profile.Profile {
	p := b.out
	p.DurationNanos = max(0, b.end-p.TimeNanos)
	if b.CPUTime > 0 {
		b.comment(attr.CPUTime + "=" + strconv.FormatInt(b.CPUTime, 10))
		b.comment(attr.CPUTime + ".sampled=" + strconv.FormatInt(b.CPUSampled, 10))
	}
	for line := range b.comments {
		p.Comments = append(p.Comments, line)
	}
	slices.Sort(p.Comments)
	if len(p.Mapping) == 0 && len(p.Location) > 0 {
		// pprof prints a warning for a profile without mappings.
		m := &profile.Mapping{
			File:         cmp.Or(executable, unknownFile),
			HasFunctions: true, HasFilenames: true, HasLineNumbers: true, HasInlineFrames: true,
		}
		p.Mapping = append(p.Mapping, m)
		for _, l := range p.Location {
			l.Mapping = m
		}
	}
	if i := b.program(executable); i > 0 {
		main := p.Mapping[i]
		p.Mapping = slices.Insert(slices.Delete(p.Mapping, i, i+1), 0, main)
	}
	for i, m := range p.Mapping {
		m.ID = uint64(i + 1)
	}
	return p
}

// program returns the index of the program's mapping. If there is no such mapping,
// program returns the index of the first mapping with a path, which is never the
// kernel's mapping. If no mapping has a path, program returns -1.
func (b *Builder) program(executable string) int {
	i := slices.IndexFunc(b.out.Mapping, func(m *profile.Mapping) bool {
		return m.File == executable || path.Base(m.File) == executable
	})
	if i < 0 {
		i = slices.IndexFunc(b.out.Mapping, func(m *profile.Mapping) bool { return strings.HasPrefix(m.File, "/") })
	}
	return i
}

// label adds a label to a sample.
func (b *Builder) label(s *profile.Sample, l label) {
	b.size += labelSize
	if l.isNumber {
		if s.NumLabel == nil {
			s.NumLabel = make(map[string][]int64)
		}
		s.NumLabel[l.key] = []int64{l.number}
		return
	}
	if s.Label == nil {
		s.Label = make(map[string][]string)
	}
	s.Label[l.key] = []string{l.text}
}

// labelOf returns the number of the label for an attribute. If the attribute cannot
// be a label, labelOf returns 0.
func (b *Builder) labelOf(key string, v pcommon.Value) int {
	l := label{key: Cut(key)}
	if v.Type() == pcommon.ValueTypeInt {
		l.number, l.isNumber = v.Int(), true
	} else if text, ok := TextOf(v); ok {
		l.text = text
	} else {
		return 0
	}
	if l.key == "" {
		return 0
	}
	return b.labelID(l)
}

// labelID returns the number of a label. Numbers start at 1.
func (b *Builder) labelID(l label) int {
	id := b.labels[l]
	if id == 0 {
		b.labelTable = append(b.labelTable, l)
		id = len(b.labelTable)
		b.labels[l] = id
		b.size += textSize + len(l.key) + len(l.text)
	}
	return id
}
