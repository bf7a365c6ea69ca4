// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package flame computes the data of a flame graph and of its tables, from one profile or
// from a comparison of two profiles.
package flame

import (
	"cmp"
	"math"
	"path"
	"slices"

	"github.com/google/pprof/profile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// These constants limit how much data of a profile is kept. If a stack is too deep, only its
// innermost frames are kept. If all stacks together have too many frames, each further stack
// keeps one frame.
const (
	maxStackDepth = 2048
	maxFrames     = 4 << 20 // of all stacks together
	maxThreads    = 4096    // thread names; further threads count as unnamed
	maxLines      = 16      // lines of a frame; the line with the largest value is shown
	maxName       = 1024    // bytes of a function's or file's name
	maxLabel      = 128     // bytes of a thread's name
)

// maxTotal is the maximum sum of all values. It is low enough that partial sums cannot
// overflow.
const maxTotal = math.MaxInt64 / 4

// These are the names of frames without a function.
const (
	unknownName = "[unknown]"
	cutName     = "[outer frames cut]"
)

// Stacks is a profile that is prepared for filtering and drawing. It contains the
// tree of all calling contexts. Each sample is a value at a node of the tree.
// Stacks does not keep the original profile in memory. Stacks is immutable, so any
// number of goroutines may use it.
type Stacks struct {
	// Unit is the unit of the values, as in pprof: nanoseconds, bytes, count.
	Unit string
	// Cut is the number of samples whose outer frames were omitted.
	Cut int

	names []string // names of functions, sorted
	files []string // files of functions

	// Nodes are in breadth-first order. Siblings are sorted by function. Node 0
	// is the root, which has no function. The children of n are first[n] up to
	// but not including first[n+1].
	parent   []int32
	first    []int32
	function []int32
	line     []int32
	inner    []bool // an ancestor has the same function because of recursion

	samples []sample
	labels  [dimensions]dimension
}

type sample struct {
	node    int32
	labels  [dimensions]uint16
	value   int64
	samples int64 // 0 if not known
}

// Label identifies a label by which samples are grouped and filtered.
type Label int

// These are the labels.
const (
	Thread  Label = iota // thread.name
	Phase                // before, both, after, baseline
	Wait                 // the reason why a thread waits
	Request              // slow, failed or normal
	Route                // the route or method of the request
	dimensions
)

// labelKeys lists the attribute keys of each label. A sample has at
// most one of these keys.
var labelKeys = [dimensions][]string{{attr.ThreadName}, {attr.TriggerPhase}, {attr.Wait}, {attr.Request}, {attr.HTTPRoute, attr.RPCMethod}}

// dimension numbers the values of a label. Number 0 is the empty value.
type dimension struct {
	values []string
	index  map[string]int
	max    int
}

func newDimension(bound int) dimension {
	return dimension{values: []string{""}, index: map[string]int{"": 0}, max: bound}
}

func (d *dimension) number(value string) int {
	if i, ok := d.index[value]; ok {
		return i
	}
	value = Short(Clean(value), maxLabel)
	if i, ok := d.index[value]; ok {
		return i
	}
	if len(d.values) >= d.max {
		return 0
	}
	d.index[value] = len(d.values)
	d.values = append(d.values, value)
	return len(d.values) - 1
}

// New prepares a profile. It uses the values of the last sample type, which is also the
// default of pprof. New changes the IDs of the locations of the profile.
func New(p *profile.Profile) *Stacks {
	s := &Stacks{}
	for d := range s.labels {
		s.labels[d] = newDimension(maxThreads)
	}
	value := len(p.SampleType) - 1
	if value < 0 {
		value = 0
	} else {
		s.Unit = Short(Clean(p.SampleType[value].Unit), maxLabel)
	}
	counts := value > 0 && p.SampleType[0].Type == "samples" && p.SampleType[0].Unit == "count"

	b := newStackBuilder(p)
	frames := 0
	for _, in := range p.Sample {
		frames += len(in.Location) // and more if functions were inlined
	}
	b.frames = make([]frame, 0, min(frames, maxFrames))
	s.names, s.files = b.names, b.files
	s.samples = make([]sample, 0, len(p.Sample))
	total := int64(0)
	for _, in := range p.Sample {
		if value >= len(in.Value) || in.Value[value] <= 0 {
			continue
		}
		v := min(in.Value[value], maxTotal-total)
		total += v
		out := sample{value: v}
		for d, keys := range labelKeys {
			for _, key := range keys {
				if values := in.Label[key]; len(values) > 0 && values[0] != "" {
					out.labels[d] = uint16(s.labels[d].number(values[0]))
				}
			}
		}
		switch {
		case counts:
			out.samples = min(max(in.Value[0], 0), maxTotal/int64(len(p.Sample)))
		case s.Unit == "count":
			out.samples = v
		}
		b.stack(in.Location)
		s.samples = append(s.samples, out)
	}
	s.Cut = b.cut
	s.build(b)
	return s
}

// frame is a function and a line of the function.
type frame struct {
	function, line int32
}

// stackBuilder holds the stacks of all samples while the tree is built.
type stackBuilder struct {
	names, files []string // of functions; sorted by name after number
	// index maps the names to their numbers. index and functions are nil after number.
	index     map[string]int32
	functions map[*profile.Function]int32
	locations [][]frame // by the ID of the location
	frames    []frame   // frames of all samples, outermost first
	offsets   []int32   // the frames of sample i are offsets[i] up to offsets[i+1]
	cut       int
	scratch   []frame
}

func newStackBuilder(p *profile.Profile) *stackBuilder {
	b := &stackBuilder{
		names: []string{cutName}, files: []string{""}, index: map[string]int32{cutName: 0},
		functions: make(map[*profile.Function]int32, len(p.Function)),
		locations: make([][]frame, 1, len(p.Location)+1), offsets: make([]int32, 1, len(p.Sample)+1),
	}
	for _, l := range p.Location {
		l.ID = uint64(len(b.locations)) // 0 is not a valid ID
		b.locations = append(b.locations, b.framesOf(l))
	}
	b.number()
	return b
}

// function returns the number of a function. Functions are numbered in the order in which
// their names first occur.
func (b *stackBuilder) function(name, file string) int32 {
	name = Short(Clean(name), maxName)
	i, ok := b.index[name]
	if !ok {
		i = int32(len(b.names))
		b.index[name] = i
		b.names, b.files = append(b.names, name), append(b.files, "")
	}
	if b.files[i] == "" {
		b.files[i] = Short(Clean(file), maxName)
	}
	return i
}

// framesOf returns the frames of a location, outermost first. It returns at least one
// frame.
func (b *stackBuilder) framesOf(l *profile.Location) []frame {
	frames := make([]frame, 0, max(1, len(l.Line)))
	for _, line := range slices.Backward(l.Line) {
		var f int32
		switch known, ok := b.functions[line.Function]; {
		case ok:
			f = known
		case line.Function == nil || line.Function.Name == "":
			f = b.function(objectName(l), "")
		default:
			file := line.Function.Filename
			if file == "" && l.Mapping != nil && l.Mapping.File != "" {
				file = path.Base(l.Mapping.File)
			}
			f = b.function(line.Function.Name, file)
			b.functions[line.Function] = f
		}
		frames = append(frames, frame{f, int32(min(max(line.Line, 0), math.MaxInt32))})
	}
	if len(frames) == 0 {
		frames = append(frames, frame{b.function(objectName(l), ""), 0})
	}
	return frames
}

// number assigns numbers to functions in the order of their names. Siblings that are
// sorted by number are therefore sorted by name.
func (b *stackBuilder) number() {
	names, files := b.names, b.files
	order := make([]int32, len(names))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(x, y int32) int { return cmp.Compare(names[x], names[y]) })
	rank := make([]int32, len(order))
	b.names, b.files = make([]string, len(order)), make([]string, len(order))
	for i, old := range order {
		rank[old] = int32(i)
		b.names[i], b.files[i] = names[old], files[old]
	}
	b.index, b.functions = nil, nil
	for _, frames := range b.locations {
		for i := range frames {
			frames[i].function = rank[frames[i].function]
		}
	}
}

// objectName returns the name that pprof prints for a frame without a function.
func objectName(l *profile.Location) string {
	if l.Mapping == nil || l.Mapping.File == "" {
		return unknownName
	}
	if name := path.Base(l.Mapping.File); name[0] != '[' {
		return "[" + name + "]"
	}
	return path.Base(l.Mapping.File)
}

// stack adds the stack of the next sample. The innermost location
// is the first in locations.
func (b *stackBuilder) stack(locations []*profile.Location) {
	room := min(maxStackDepth, maxFrames-len(b.frames))
	if room < 2 {
		room = 1
	}
	// Add the innermost frames first, until there is no room for more.
	frames, cut := b.scratch[:0], false
	for _, l := range locations {
		for _, f := range slices.Backward(b.at(l)) {
			if len(frames) >= room {
				cut = true
				break
			}
			frames = append(frames, f)
		}
	}
	if cut {
		b.cut++
		i, _ := slices.BinarySearch(b.names, cutName)
		frames = append(frames, frame{function: int32(i)})
	}
	slices.Reverse(frames)
	b.frames = append(b.frames, frames...)
	b.offsets = append(b.offsets, int32(len(b.frames)))
	b.scratch = frames
}

// at returns the frames of a location, outermost first.
func (b *stackBuilder) at(l *profile.Location) []frame {
	if l == nil || l.ID >= uint64(len(b.locations)) {
		return nil
	}
	return b.locations[l.ID]
}

func (b *stackBuilder) of(i int32) []frame {
	return b.frames[b.offsets[i]:b.offsets[i+1]]
}

// build builds the tree. It first sorts the samples by stack, so that the samples below a
// node are adjacent.
func (s *Stacks) build(b *stackBuilder) {
	order := make([]int32, len(s.samples))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(x, y int32) int {
		return slices.CompareFunc(b.of(x), b.of(y), func(f, g frame) int {
			return int(f.function) - int(g.function)
		})
	})

	type span struct{ from, to, depth int32 } // part of order whose stacks share depth frames
	spans := []span{{0, int32(len(order)), 0}}
	s.parent, s.function, s.line = []int32{-1}, []int32{-1}, []int32{0}
	type lineValue struct {
		line  int32
		value int64
	}
	lines := make([]lineValue, 0, maxLines)
	for n := 0; n < len(spans); n++ {
		in := spans[n]
		s.first = append(s.first, int32(len(spans)))
		i := in.from
		for ; i < in.to && len(b.of(order[i])) == int(in.depth); i++ {
			s.samples[order[i]].node = int32(n)
		}
		for i < in.to {
			from, function := i, b.of(order[i])[in.depth].function
			lines = lines[:0]
			for ; i < in.to && b.of(order[i])[in.depth].function == function; i++ {
				line, value := b.of(order[i])[in.depth].line, s.samples[order[i]].value
				j := slices.IndexFunc(lines, func(l lineValue) bool { return l.line == line })
				if j >= 0 {
					lines[j].value += value
				} else if len(lines) < maxLines {
					lines = append(lines, lineValue{line, value})
				}
			}
			hottest := slices.MaxFunc(lines, func(a, b lineValue) int { return cmp.Compare(a.value, b.value) })
			spans = append(spans, span{from, i, in.depth + 1})
			s.parent = append(s.parent, int32(n))
			s.function = append(s.function, function)
			s.line = append(s.line, hottest.line)
		}
	}
	s.first = append(s.first, int32(len(spans)))
	s.parent, s.first = slices.Clip(s.parent), slices.Clip(s.first)
	s.function, s.line = slices.Clip(s.function), slices.Clip(s.line)
	s.markRecursion()
}

// markRecursion sets inner for each node whose function also occurs in an ancestor of the
// node.
func (s *Stacks) markRecursion() {
	s.inner = make([]bool, len(s.parent))
	active := make([]int32, len(s.names)) // number of ancestors with each function
	var below func(int32)
	below = func(parent int32) { // at most maxStackDepth calls deep
		for n := s.first[parent]; n < s.first[parent+1]; n++ {
			f := s.function[n]
			s.inner[n] = active[f] > 0
			active[f]++
			below(n)
			active[f]--
		}
	}
	below(0)
}

// Size returns the estimated memory of the profile, in bytes.
func (s *Stacks) Size() int64 {
	size := int64(len(s.parent))*17 + int64(len(s.samples))*40
	for i := range s.names {
		size += int64(len(s.names[i])+len(s.files[i])) + 32
	}
	for _, d := range s.labels {
		size += int64(len(d.values)) * 96
	}
	return size
}

// Filter selects samples by their labels. The zero value selects all samples. The value
// Unlabelled selects the samples without the label.
type Filter struct {
	Thread, Phase, Wait, Request, Route string
}

// Fields returns pointers to the fields, indexed by label.
func (f *Filter) Fields() [dimensions]*string {
	return [...]*string{&f.Thread, &f.Phase, &f.Wait, &f.Request, &f.Route}
}

// Unlabelled is the value of a filter that selects samples without the label.
const Unlabelled = "-"

// Has reports whether any sample belongs to a class of requests, such as slow.
func (s *Stacks) Has(request string) bool {
	_, ok := s.labels[Request].index[request]
	return ok
}

// choice returns the number of the label value that a filter selects. If the filter
// selects all values, the number is -1. If the label has no such value, any is false.
func (d *dimension) choice(value string) (number int, any bool) {
	switch value {
	case "":
		return -1, true
	case Unlabelled:
		value = ""
	}
	number, any = d.index[value]
	return number, any
}

// each calls f for each sample that a filter selects.
func (s *Stacks) each(filter Filter, f func(*sample)) {
	var wanted [dimensions]int
	for d, value := range filter.Fields() {
		n, ok := s.labels[d].choice(*value)
		if !ok {
			return
		}
		wanted[d] = n
	}
samples:
	for i := range s.samples {
		one := &s.samples[i]
		for d, n := range wanted {
			if n >= 0 && int(one.labels[d]) != n {
				continue samples
			}
		}
		f(one)
	}
}

// totals returns the total value of each node. The total value of a node includes the values
// of the nodes below it.
func (s *Stacks) totals(filter Filter) []int64 {
	totals := make([]int64, len(s.parent))
	s.each(filter, func(one *sample) { totals[one.node] += one.value })
	for n := len(totals) - 1; n > 0; n-- {
		totals[s.parent[n]] += totals[n]
	}
	return totals
}

// self returns the value of a node without the nodes below it.
func (s *Stacks) self(totals []int64, n int32) int64 {
	v := totals[n]
	for _, child := range totals[s.first[n]:s.first[n+1]] {
		v -= child
	}
	return v
}
