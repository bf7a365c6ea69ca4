// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"

	"github.com/google/pprof/profile"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/internal/truncate"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// maxDepth is the maximum number of frames in a stack. maxText is the maximum length of a
// name or path in bytes. Stacks from net/http/pprof itself have at most 128 frames.
const (
	maxDepth = 1024
	maxText  = 4096
	// goDepth is the maximum number of calls that Go's runtime records. A stack with this
	// many calls may be truncated.
	goDepth = 128
	// padding is the address in the unused entries of a thread's stack in profiles of Go's
	// runtime. It is one less than address 0.
	padding = math.MaxUint64
)

// noStack is the function shown for samples without a stack. For example, Go does not
// record the stacks that created a program's first threads.
const noStack = "[no stack]"

// pulled is a profile that is being converted.
type pulled struct {
	kind     Kind
	profile  *profile.Profile
	window   samples.CaptureWindow
	resource *samples.Resource
	frames   samples.FrameType // type of frames with a name

	mappings  map[*profile.Mapping]*samples.Mapping
	locations map[*profile.Location]*samples.Location
	stacks    map[string]*samples.Stack
	noStack   *samples.Stack // nil until a sample has no stack
	scratch   []byte
}

// sums contains the summed values of one stack.
type sums struct {
	sumKey
	values [2]int64
}

type sumKey struct {
	stack *samples.Stack
	link  samples.Link
}

var errImplausible = errors.New("it has more samples than CPUs could have taken in its time")

// emit adds a profile's samples to the sink. It sums all samples with the same stack and
// active span, and ignores their other labels. emit returns the number of added events, and
// the number of events that did not fit.
func (c *pulled) emit(to sampler.SentSink) (added, noRoom int, err error) {
	columns, err := c.kind.columns(c.profile)
	if err != nil {
		return 0, 0, err
	}
	c.mappings = make(map[*profile.Mapping]*samples.Mapping)
	c.locations = make(map[*profile.Location]*samples.Location)
	c.stacks = make(map[string]*samples.Stack)
	index := make(map[sumKey]int)
	var all []sums
	for _, s := range c.profile.Sample {
		k := sumKey{c.stack(s), linkOf(s)}
		i, ok := index[k]
		if !ok {
			i = len(all)
			index[k] = i
			all = append(all, sums{sumKey: k})
		}
		for j, col := range columns {
			v := s.Value[col.index] / col.divisor
			if v <= 0 {
				// The difference of two scaled estimates may be slightly negative.
				continue
			}
			if all[i].values[j] > math.MaxInt64-v {
				return 0, 0, errImplausible
			}
			all[i].values[j] += v
		}
	}
	if c.kind.Name == nameCPU {
		total := int64(0)
		for i := range all {
			if total += all[i].values[0]; total < 0 || !plausible(total, c.window.End-c.window.Start, c.profile.Period) {
				return 0, 0, errImplausible
			}
		}
	}
	for i := range all {
		for j, col := range columns {
			n, missed := c.add(to, &all[i], col.typ, all[i].values[j])
			added += n
			noRoom += missed
		}
	}
	return added, noRoom, nil
}

// add adds the events of one stack. For types with a value, it adds one event with this
// value. For types without a value, it adds as many events as were counted, spread evenly
// over the window.
func (c *pulled) add(to sampler.SentSink, s *sums, typ *samples.Type, v int64) (added, noRoom int) {
	if v == 0 {
		return 0, 0
	}
	k := samples.Key{Resource: c.resource, Type: typ, Stack: s.stack, Link: s.link, Period: period(c.profile), Window: &c.window}
	if typ.Valued {
		if to.AddSent(k, c.window.End-1, v) {
			return 1, 0
		}
		return 0, 1
	}
	step := float64(c.window.End-c.window.Start) / float64(v)
	for i := range v {
		if !to.AddSent(k, c.window.Start+int64((float64(i)+0.5)*step), 0) {
			return int(i), int(v - i) // the remaining events do not fit either
		}
	}
	return int(v), 0
}

// stack returns the stack of a sample. It returns the same stack for the same calls. A
// sample without a stack gets the frame "[no stack]", so that the program's sums stay
// correct.
func (c *pulled) stack(s *profile.Sample) *samples.Stack {
	key := c.scratch[:0]
	for _, l := range s.Location[:min(len(s.Location), maxDepth)] {
		key = binary.LittleEndian.AppendUint64(key, l.ID)
	}
	c.scratch = key
	if found, ok := c.stacks[string(key)]; ok && len(s.Location) <= maxDepth {
		return found
	}
	out := &samples.Stack{Truncated: len(s.Location) > maxDepth}
	calls := 0
	for _, l := range s.Location[:min(len(s.Location), maxDepth)] {
		if at := c.location(l); at != nil {
			out.Locations = append(out.Locations, at)
			calls += max(1, len(at.Lines))
		}
	}
	out.Truncated = out.Truncated || calls >= goDepth
	if len(out.Locations) == 0 {
		if c.noStack == nil {
			at := &samples.Location{Type: samples.FrameNative, Resolved: true, Lines: []samples.Line{{Function: noStack}}}
			c.noStack = &samples.Stack{Locations: []*samples.Location{at}}
		}
		out = c.noStack
	}
	if len(s.Location) <= maxDepth {
		c.stacks[string(key)] = out
	}
	return out
}

// location returns the samples.Location for a pprof location. It returns nil if the pprof
// location has no name and no address.
func (c *pulled) location(l *profile.Location) *samples.Location {
	if at, ok := c.locations[l]; ok {
		return at
	}
	at := &samples.Location{Type: samples.FrameNative, Mapping: c.mapping(l), Address: l.Address, Resolved: true}
	for _, line := range l.Line {
		f := line.Function
		if f == nil || f.Name == "" || len(at.Lines) >= maxDepth {
			continue // Go writes a function without a name for an unknown address
		}
		out := samples.Line{
			Function: cut(f.Name), File: cut(f.Filename),
			StartLine: max(f.StartLine, 0), Line: max(line.Line, 0),
		}
		if f.SystemName != f.Name {
			out.SystemName = cut(f.SystemName)
		}
		at.Lines = append(at.Lines, out)
	}
	if len(at.Lines) > 0 {
		at.Type = c.frames
	} else if at.Address == 0 || at.Address == padding {
		at = nil
	}
	c.locations[l] = at
	return at
}

// mapping returns the mapping of a location. It returns nil if the location is outside of
// the mapping. A mapping from 0 to 0 is accepted for all locations, because some programs
// write zeros.
func (c *pulled) mapping(l *profile.Location) *samples.Mapping {
	m := l.Mapping
	if m == nil || m.Limit < m.Start || m.Limit != 0 && (l.Address < m.Start || l.Address > m.Limit) {
		return nil
	}
	out, ok := c.mappings[m]
	if !ok {
		out = &samples.Mapping{PID: c.resource.PID, Start: m.Start, Limit: m.Limit, FileOffset: m.Offset, Path: cut(m.File)}
		// Go's own build id is not hexadecimal.
		if _, err := hex.DecodeString(m.BuildID); err == nil {
			out.BuildID = cut(m.BuildID)
		} else {
			out.GoBuildID = cut(m.BuildID)
		}
		c.mappings[m] = out
	}
	return out
}

func cut(s string) string { return truncate.Cut(s, maxText) }

// linkOf returns the active span if the program adds it to the labels of its samples.
func linkOf(s *profile.Sample) samples.Link {
	trace, span := s.Label[samples.LabelTraceID], s.Label[samples.LabelSpanID]
	if len(trace) != 1 || len(span) != 1 {
		return samples.Link{}
	}
	return samples.ParseLink(trace[0], span[0])
}

// frameTypeOf returns the frame type for a program's telemetry.sdk.language. The default is
// Go for an empty language, and native for an unknown language.
func frameTypeOf(language string) samples.FrameType {
	return cmp.Or(frameTypes[language], samples.FrameNative)
}

// frameTypes contains the frame type of each telemetry.sdk.language.
var frameTypes = map[string]samples.FrameType{
	"": samples.FrameGo, "go": samples.FrameGo, "java": samples.FrameJVM, "nodejs": samples.FrameV8, "webjs": samples.FrameV8,
	"python": samples.FramePython, "dotnet": samples.FrameDotnet, "ruby": "ruby", "php": "php", "rust": "rust", "erlang": "beam",
}
