// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"cmp"
	"path"
	"slices"
	"strings"
	"unicode"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
)

// builder builds a pprof profile. Samples with the same stack and labels are merged,
// so that its size depends on how many differ and not on time.
type builder struct {
	out *profile.Profile
	// events counts the timestamps of the samples added, at least one each.
	events int
	// size is the estimated memory in bytes.
	size int

	functions map[functionKey]*profile.Function
	mappings  map[mappingKey]*profile.Mapping
	locations map[string]*profile.Location
	samples   map[string]*profile.Sample
	labels    map[label]int // their indices in labelTable, and one more
	comments  map[string]struct{}
	end       int64
	scratch   []byte

	labelTable []label
}

// label is an attribute of samples: a text, or a number.
type label struct {
	key, text string
	number    int64
	isNumber  bool
}

type functionKey struct {
	name, system, file string
	startLine          int64
}

type mappingKey struct {
	start, limit, offset uint64
	file, buildID        string
}

// Estimated bytes of an entry without its strings and slices: the structure, its
// entries in maps and tables, and what the allocator rounds up.
const (
	builderSize  = 4 << 10
	functionSize = 256
	mappingSize  = 320
	locationSize = 288
	lineSize     = 40
	sampleSize   = 320
	labelSize    = 400 // a sample's, with maps and slices of its own
	textSize     = 160 // a comment, or a label that samples share
)

// Bounds of what one sample or profile may add, since a request may refer to one entry
// of its dictionary millions of times.
const (
	maxText     = 8 << 10 // bytes of a text, as of names in program files
	maxDepth    = 4096    // frames of a stack; the innermost are kept
	maxLines    = 128     // functions of a location
	maxLabels   = 64      // of a sample
	maxComments = 100
)

// cut cuts a text to maxText bytes. The result of cutting does not hold the memory of
// the whole text.
func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(strings.Clone(s[:maxText]), "")
}

// textOf returns an attribute's value as a text, cut; false for lists, maps and bytes.
func textOf(v pcommon.Value) (string, bool) {
	switch v.Type() {
	case pcommon.ValueTypeStr, pcommon.ValueTypeInt, pcommon.ValueTypeDouble, pcommon.ValueTypeBool:
		return cut(v.AsString()), true
	default:
		return "", false
	}
}

// unknownFile is the filename of a mapping that has none.
const unknownFile = "[unknown]"

// countsPeriods reports whether the samples are events that stand for a period each.
func countsPeriods(t dictionary.ProfileType) bool {
	return t.Sample == "samples" && t.Unit == "count" && t.Period != ""
}

// typeName returns the name that configurations and files use: cpu for events of
// CPU time, off_cpu or alloc_space for types with a name of their own.
func typeName(t dictionary.ProfileType) string {
	if countsPeriods(t) {
		return t.Period
	}
	return t.Sample
}

// newBuilder returns a builder of profiles of a type and hotprofile.origin.
func newBuilder(t dictionary.ProfileType, origin string) *builder {
	b := &builder{
		out: &profile.Profile{
			SampleType: []*profile.ValueType{{Type: t.Sample, Unit: t.Unit}},
			PeriodType: &profile.ValueType{Type: t.Period, Unit: t.PeriodUnit},
		},
		size:      builderSize,
		functions: make(map[functionKey]*profile.Function),
		mappings:  make(map[mappingKey]*profile.Mapping),
		locations: make(map[string]*profile.Location),
		samples:   make(map[string]*profile.Sample),
		labels:    make(map[label]int),
		comments:  make(map[string]struct{}),
	}
	if countsPeriods(t) {
		// Two values as in Go's CPU profiles: how many, and how long.
		b.out.SampleType = append(b.out.SampleType, &profile.ValueType{Type: t.Period, Unit: t.PeriodUnit})
	}
	if origin != "" {
		b.comment(attr.Origin + "=" + origin)
	}
	return b
}

// addition is the result of adding a profile, or a part of it.
type addition struct {
	// next is the index of the first sample that was not added.
	next int
	// malformed events were left out: they refer to entries that the dictionary does
	// not have. sum is the sum of the values of the others.
	malformed int
	sum       float64
}

// add adds samples of a part of a profile of the builder's type, beginning with the one at index
// from, until the builder has grown by more than room bytes.
func (b *builder) add(d dictionary.Reader, p part, comments map[string]string, from, room int) (a addition) {
	if b.out.Period == 0 {
		b.out.Period = p.Period()
	}
	start, end := p.span()
	if start != 0 && (b.out.TimeNanos == 0 || start < b.out.TimeNanos) {
		b.out.TimeNanos = start
	}
	b.end = max(b.end, end)
	before := b.size
	for k, v := range comments {
		b.comment(k + "=" + v)
	}
	c := converter{b: b, d: d, locations: make(map[int32]*profile.Location), labels: make(map[int32]int)}
	a.next = from
	for ; a.next < p.len() && (a.next == from || b.size-before <= room); a.next++ {
		s, value, n := p.at(a.next)
		if c.sample(s, value, p.Period()) {
			b.events += n
			a.sum += float64(value)
		} else {
			a.malformed += n
		}
	}
	return a
}

// commentsOf returns the attributes of a profile that become comments: those with
// hotprofile's prefix.
func commentsOf(d dictionary.Reader, p pprofile.Profile) map[string]string {
	comments := make(map[string]string)
	for k, v := range d.Attributes(p.AttributeIndices()) {
		if !strings.HasPrefix(k, attr.Prefix) || len(comments) == maxComments {
			continue
		}
		k = cut(k)
		if _, seen := comments[k]; seen {
			continue
		}
		if text, ok := textOf(v); ok {
			comments[k] = text
		}
	}
	return comments
}

// comment adds a line to the comments of the file, each once.
func (b *builder) comment(line string) {
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

// finish completes and returns the profile. executable is the path of the program, or
// its name if the path was removed: pprof takes the first mapping for the program's.
func (b *builder) finish(executable string) *profile.Profile {
	p := b.out
	p.DurationNanos = max(0, b.end-p.TimeNanos)
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

// program returns the index of the program's mapping, else of the first with a path,
// which the kernel's mapping does not have; -1 if there is none.
func (b *builder) program(executable string) int {
	i := slices.IndexFunc(b.out.Mapping, func(m *profile.Mapping) bool {
		return m.File == executable || path.Base(m.File) == executable
	})
	if i < 0 {
		i = slices.IndexFunc(b.out.Mapping, func(m *profile.Mapping) bool { return strings.HasPrefix(m.File, "/") })
	}
	return i
}

// label adds a label to a sample.
func (b *builder) label(s *profile.Sample, l label) {
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

// labelOf returns the number of the label that an attribute becomes, 0 if none.
func (b *builder) labelOf(key string, v pcommon.Value) int {
	l := label{key: cut(key)}
	if v.Type() == pcommon.ValueTypeInt {
		l.number, l.isNumber = v.Int(), true
	} else if text, ok := textOf(v); ok {
		l.text = text
	} else {
		return 0
	}
	if l.key == "" {
		return 0
	}
	id := b.labels[l]
	if id == 0 {
		b.labelTable = append(b.labelTable, l)
		id = len(b.labelTable)
		b.labels[l] = id
		b.size += textSize + len(l.key) + len(l.text)
	}
	return id
}
