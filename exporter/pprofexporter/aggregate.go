// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"cmp"
	"encoding/binary"
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
)

// aggregate is a pprof profile in the making: samples of equal stack and labels
// are one, so that it grows with what is different and not with time.
type aggregate struct {
	out *profile.Profile
	// events counts what was added: a sample's timestamps, or one.
	events int
	// size estimates the memory held.
	size int

	functions map[functionKey]*profile.Function
	mappings  map[mappingKey]*profile.Mapping
	locations map[string]*profile.Location
	samples   map[string]*profile.Sample
	comments  map[string]struct{}
	end       int64
	// executable is the path of the program, and its name where the path was
	// removed. Its mapping goes first: pprof takes the first for the program.
	executable string
	scratch    []byte
}

type functionKey struct {
	name, system, file string
	startLine          int64
}

type mappingKey struct {
	start, limit, offset uint64
	file, buildID        string
}

// What entries are estimated to hold beside their strings and slices: the
// structures, their places in maps and tables, and the allocator's rounding.
const (
	aggregateSize = 4 << 10
	functionSize  = 256
	mappingSize   = 320
	locationSize  = 288
	lineSize      = 40
	sampleSize    = 320
	labelSize     = 400

	maxComments = 100
)

// unknownFile stands for what code is of where nothing says it.
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

func newAggregate(t dictionary.ProfileType) *aggregate {
	a := &aggregate{
		out: &profile.Profile{
			SampleType: []*profile.ValueType{{Type: t.Sample, Unit: t.Unit}},
			PeriodType: &profile.ValueType{Type: t.Period, Unit: t.PeriodUnit},
		},
		size:      aggregateSize,
		functions: make(map[functionKey]*profile.Function),
		mappings:  make(map[mappingKey]*profile.Mapping),
		locations: make(map[string]*profile.Location),
		samples:   make(map[string]*profile.Sample),
		comments:  make(map[string]struct{}),
	}
	if countsPeriods(t) {
		// As Go's CPU profiles have it: how often, and how long.
		a.out.SampleType = append(a.out.SampleType, &profile.ValueType{Type: t.Period, Unit: t.PeriodUnit})
	}
	return a
}

// add adds a profile of the type that a was made for and reports how many of
// its events could not go in, because they refer to entries that the dictionary
// does not have.
func (a *aggregate) add(d dictionary.Reader, resource pcommon.Map, p pprofile.Profile) (malformed int) {
	if a.executable == "" {
		a.executable = cmp.Or(dictionary.ResourceText(resource, attr.ExecutablePath), dictionary.ResourceText(resource, attr.ExecutableName))
	}
	if a.out.Period == 0 {
		a.out.Period = p.Period()
	}
	if start := int64(p.Time()); start != 0 && (a.out.TimeNanos == 0 || start < a.out.TimeNanos) {
		a.out.TimeNanos = start
	}
	a.end = max(a.end, int64(p.Time())+int64(p.DurationNano()))
	for k, v := range d.Attributes(p.AttributeIndices()) {
		if strings.HasPrefix(k, attr.Prefix) {
			a.comment(k + "=" + v.AsString())
		}
	}

	t := translation{a: a, d: d, locations: make(map[int32]*profile.Location)}
	for _, s := range p.Samples().All() {
		n := max(1, s.TimestampsUnixNano().Len())
		if t.sample(s, p.Period()) {
			a.events += n
		} else {
			malformed += n
		}
	}
	return malformed
}

// comment keeps a line for the file's reader once.
func (a *aggregate) comment(line string) {
	line = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, line)
	if _, ok := a.comments[line]; ok || len(a.comments) >= maxComments {
		return
	}
	a.comments[line] = struct{}{}
	a.size += len(line) + labelSize
}

// finish returns the profile, complete but for what it may not have.
func (a *aggregate) finish() *profile.Profile {
	p := a.out
	p.DurationNanos = max(0, a.end-p.TimeNanos)
	for line := range a.comments {
		p.Comments = append(p.Comments, line)
	}
	slices.Sort(p.Comments)
	if len(p.Mapping) == 0 && len(p.Location) > 0 {
		// pprof complains of a profile without any.
		m := &profile.Mapping{
			File:         cmp.Or(a.executable, unknownFile),
			HasFunctions: true, HasFilenames: true, HasLineNumbers: true, HasInlineFrames: true,
		}
		p.Mapping = append(p.Mapping, m)
		for _, l := range p.Location {
			l.Mapping = m
		}
	}
	if i := a.program(); i > 0 {
		main := p.Mapping[i]
		p.Mapping = slices.Insert(slices.Delete(p.Mapping, i, i+1), 0, main)
	}
	for i, m := range p.Mapping {
		m.ID = uint64(i + 1)
	}
	return p
}

// program is the index of the program's mapping, else of the first that a file
// backs: a kernel is nobody's program.
func (a *aggregate) program() int {
	i := slices.IndexFunc(a.out.Mapping, func(m *profile.Mapping) bool {
		return m.File == a.executable || path.Base(m.File) == a.executable
	})
	if i < 0 {
		i = slices.IndexFunc(a.out.Mapping, func(m *profile.Mapping) bool { return strings.HasPrefix(m.File, "/") })
	}
	return i
}

// translation is the way of one profile into a.
type translation struct {
	a         *aggregate
	d         dictionary.Reader
	locations map[int32]*profile.Location // by index; nil: malformed
	scratch   []*profile.Location
}

func (t *translation) sample(s pprofile.Sample, period int64) bool {
	a := t.a
	locations, ok := t.stack(s.StackIndex())
	if !ok {
		return false
	}
	key := a.scratch[:0]
	for _, l := range locations {
		key = binary.AppendUvarint(key, l.ID)
	}
	// 0 is no location's id, so that a stack does not run into the labels.
	key = append(key, 0)
	for k, v := range t.d.Attributes(s.AttributeIndices()) {
		key = strconv.AppendQuote(key, k)
		key = append(key, byte(v.Type()))
		key = strconv.AppendQuote(key, v.AsString())
	}
	a.scratch = key

	out := a.samples[string(key)]
	if out == nil {
		out = &profile.Sample{Location: slices.Clone(locations), Value: make([]int64, len(a.out.SampleType))}
		a.size += sampleSize + len(key) + 8*len(locations)
		for k, v := range t.d.Attributes(s.AttributeIndices()) {
			a.label(out, k, v)
		}
		a.samples[string(key)] = out
		a.out.Sample = append(a.out.Sample, out)
	}

	value := int64(0)
	for _, v := range s.Values().All() {
		value += v
	}
	if s.Values().Len() == 0 {
		value = int64(s.TimestampsUnixNano().Len())
	}
	out.Value[0] += value
	if len(out.Value) > 1 {
		out.Value[1] += value * period
	}
	return true
}

func (a *aggregate) label(s *profile.Sample, key string, v pcommon.Value) {
	a.size += labelSize
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

// stack returns the locations until the next call.
func (t *translation) stack(i int32) ([]*profile.Location, bool) {
	table := t.d.StackTable()
	if i < 0 || int(i) >= table.Len() {
		return nil, false
	}
	indices := table.At(int(i)).LocationIndices()
	out := t.scratch[:0]
	for _, at := range indices.All() {
		l, known := t.locations[at]
		if !known {
			l = t.location(at)
			t.locations[at] = l
		}
		if l == nil {
			return nil, false
		}
		out = append(out, l)
	}
	t.scratch = out
	return out, true
}

// location returns nil where something that it refers to is not there.
func (t *translation) location(i int32) *profile.Location {
	table := t.d.LocationTable()
	if i < 0 || int(i) >= table.Len() {
		return nil
	}
	in := table.At(int(i))
	m, ok := t.mapping(in.MappingIndex())
	if !ok {
		return nil
	}
	lines := make([]profile.Line, 0, in.Lines().Len())
	for _, line := range in.Lines().All() {
		f, ok := t.function(line.FunctionIndex())
		if !ok {
			return nil
		}
		if f != nil {
			lines = append(lines, profile.Line{Function: f, Line: line.Line(), Column: line.Column()})
		}
	}

	a := t.a
	key := binary.LittleEndian.AppendUint64(a.scratch[:0], in.Address())
	if m != nil {
		key = binary.AppendUvarint(key, m.ID)
	} else {
		key = append(key, 0)
	}
	for _, l := range lines {
		key = binary.AppendUvarint(key, l.Function.ID)
		key = binary.AppendVarint(key, l.Line)
		key = binary.AppendVarint(key, l.Column)
	}
	a.scratch = key
	out := a.locations[string(key)]
	if out == nil {
		out = &profile.Location{ID: uint64(len(a.out.Location) + 1), Mapping: m, Address: in.Address(), Line: lines}
		a.size += locationSize + len(key) + len(lines)*lineSize
		a.locations[string(key)] = out
		a.out.Location = append(a.out.Location, out)
	}
	return out
}

func (t *translation) function(i int32) (f *profile.Function, ok bool) {
	table := t.d.FunctionTable()
	if i < 0 || int(i) >= table.Len() {
		return nil, false
	}
	if i == 0 {
		return nil, true
	}
	in := table.At(int(i))
	key := functionKey{
		name:      t.d.Text(in.NameStrindex()),
		system:    t.d.Text(in.SystemNameStrindex()),
		file:      t.d.Text(in.FilenameStrindex()),
		startLine: in.StartLine(),
	}
	a := t.a
	f = a.functions[key]
	if f == nil {
		f = &profile.Function{
			ID:         uint64(len(a.out.Function) + 1),
			Name:       key.name,
			SystemName: key.system,
			Filename:   key.file,
			StartLine:  key.startLine,
		}
		if f.SystemName == "" {
			f.SystemName = f.Name
		}
		a.size += functionSize + len(key.name) + len(key.system) + len(key.file)
		a.functions[key] = f
		a.out.Function = append(a.out.Function, f)
	}
	return f, true
}

func (t *translation) mapping(i int32) (m *profile.Mapping, ok bool) {
	table := t.d.MappingTable()
	if i < 0 || int(i) >= table.Len() {
		return nil, false
	}
	if i == 0 {
		return nil, true
	}
	in := table.At(int(i))
	key := mappingKey{
		start:  in.MemoryStart(),
		limit:  in.MemoryLimit(),
		offset: in.FileOffset(),
		file:   t.d.Text(in.FilenameStrindex()),
	}
	// pprof has room for one id; the linker's is the one that tools look for.
	rank := 0
	for k, v := range t.d.Attributes(in.AttributeIndices()) {
		r := slices.Index([]string{attr.BuildIDHTLHash, attr.BuildIDGo, attr.BuildIDGNU}, k) + 1
		if r > rank {
			rank, key.buildID = r, v.AsString()
		}
	}
	a := t.a
	m = a.mappings[key]
	if m == nil {
		m = &profile.Mapping{
			ID:      uint64(len(a.out.Mapping) + 1),
			Start:   key.start,
			Limit:   key.limit,
			Offset:  key.offset,
			File:    key.file,
			BuildID: key.buildID,
			// Names are looked up where the program runs. Without these pprof
			// searches the reader's disk for a program of another host's.
			HasFunctions: true, HasFilenames: true, HasLineNumbers: true, HasInlineFrames: true,
		}
		a.size += mappingSize + len(key.file) + len(key.buildID)
		a.mappings[key] = m
		a.out.Mapping = append(a.out.Mapping, m)
	}
	return m, true
}

// share is a function's part of a profile.
type share struct {
	function string
	percent  float64
}

// hottest returns the n functions with the most self time, as `pprof -top`
// counts it: of samples that were taken in the function itself.
func hottest(p *profile.Profile, n int) []share {
	self := make(map[string]int64)
	total := int64(0)
	for _, s := range p.Sample {
		v := s.Value[len(s.Value)-1]
		total += v
		self[leaf(s)] += v
	}
	shares := make([]share, 0, len(self))
	for f, v := range self {
		if total > 0 {
			shares = append(shares, share{f, 100 * float64(v) / float64(total)})
		}
	}
	slices.SortFunc(shares, func(a, b share) int {
		switch {
		case a.percent > b.percent:
			return -1
		case a.percent < b.percent:
			return 1
		}
		return strings.Compare(a.function, b.function)
	})
	return shares[:min(n, len(shares))]
}

// leaf names what a sample was taken in: its innermost function, else the file
// that the code is of.
func leaf(s *profile.Sample) string {
	if len(s.Location) == 0 {
		return "[no stack]"
	}
	l := s.Location[0]
	if len(l.Line) > 0 && l.Line[0].Function.Name != "" {
		return l.Line[0].Function.Name
	}
	if l.Mapping != nil && l.Mapping.File != "" {
		return "[" + path.Base(strings.Trim(l.Mapping.File, "[]")) + "]"
	}
	return unknownFile
}
