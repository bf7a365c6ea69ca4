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
	comments  map[string]struct{}
	end       int64
	scratch   []byte
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
	labelSize    = 400

	maxComments = 100
)

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

// add adds a profile of the builder's type. It returns how many events were left out
// because they refer to entries that the dictionary does not have, and the sum of the
// values of the others.
func (b *builder) add(d dictionary.Reader, p pprofile.Profile) (malformed int, sum float64) {
	if b.out.Period == 0 {
		b.out.Period = p.Period()
	}
	if start := int64(p.Time()); start != 0 && (b.out.TimeNanos == 0 || start < b.out.TimeNanos) {
		b.out.TimeNanos = start
	}
	b.end = max(b.end, int64(p.Time())+int64(p.DurationNano()))
	for k, v := range d.Attributes(p.AttributeIndices()) {
		if strings.HasPrefix(k, attr.Prefix) {
			b.comment(k + "=" + v.AsString())
		}
	}

	c := converter{b: b, d: d, locations: make(map[int32]*profile.Location)}
	for _, s := range p.Samples().All() {
		n := max(1, s.TimestampsUnixNano().Len())
		if value, ok := c.sample(s, p.Period()); ok {
			b.events += n
			sum += float64(value)
		} else {
			malformed += n
		}
	}
	return malformed, sum
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
	b.size += len(line) + labelSize
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
func (b *builder) label(s *profile.Sample, key string, v pcommon.Value) {
	b.size += labelSize
	if v.Type() == pcommon.ValueTypeInt {
		if s.NumLabel == nil {
			s.NumLabel = make(map[string][]int64)
		}
		s.NumLabel[key] = []int64{v.Int()}
		return
	}
	if s.Label == nil {
		s.Label = make(map[string][]string)
	}
	s.Label[key] = []string{v.AsString()}
}
