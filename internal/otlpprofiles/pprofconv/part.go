// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofconv

import (
	"maps"
	"slices"

	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
)

// Part is a set of values that may be added up. A Part is a whole profile, or the
// values of a snapshot at one moment.
type Part struct {
	pprofile.Profile
	// Moment is the time of the values, in nanoseconds since 1970. It is 0 for a whole
	// profile.
	Moment int64
	values []position
}

// position identifies a value of a profile. An index of -1 means all values of the sample.
type position struct{ sample, index int32 }

// isSnapshot reports whether each value of a type describes one moment. Values of
// different moments must not be added up.
func isSnapshot(t dictionary.ProfileType) bool {
	switch t.Sample {
	case "inuse_objects", "inuse_space", "goroutine", "goroutines", "threadcreate", "threads":
		return true
	}
	return false
}

// PartsOf returns the parts of a profile, sorted by moment. t is the type of the profile.
func PartsOf(t dictionary.ProfileType, p pprofile.Profile) []Part {
	if !isSnapshot(t) {
		return []Part{{Profile: p}}
	}
	end := max(int64(p.Time())+int64(p.DurationNano()), 1)
	parts := make(map[int64]*Part)
	add := func(moment int64, at position) {
		of := parts[moment]
		if of == nil {
			of = &Part{Profile: p, Moment: moment}
			parts[moment] = of
		}
		of.values = append(of.values, at)
	}
	for i, s := range p.Samples().All() {
		times := s.TimestampsUnixNano()
		if times.Len() == 0 || times.Len() != s.Values().Len() {
			add(end, position{int32(i), -1})
			continue
		}
		for k, at := range times.All() {
			add(max(int64(at), 1), position{int32(i), int32(k)})
		}
	}
	out := make([]Part, 0, len(parts))
	for _, moment := range slices.Sorted(maps.Keys(parts)) {
		out = append(out, *parts[moment])
	}
	return out
}

// Span returns the start and the end of the part, in nanoseconds since 1970.
func (p Part) Span() (start, end int64) {
	if p.Moment != 0 {
		return p.Moment, p.Moment
	}
	return int64(p.Time()), int64(p.Time()) + int64(p.DurationNano())
}

// Len returns the number of samples of a whole profile. For a snapshot, Len returns the
// number of values at the moment of the snapshot.
func (p Part) Len() int {
	if p.Moment != 0 {
		return len(p.values)
	}
	return p.Samples().Len()
}

// at returns a sample, its value and the number of its events.
func (p Part) at(i int) (s pprofile.Sample, value int64, events int) {
	if p.Moment != 0 {
		at := p.values[i]
		if s = p.Samples().At(int(at.sample)); at.index >= 0 {
			return s, s.Values().At(int(at.index)), 1
		}
	} else {
		s = p.Samples().At(i)
	}
	return s, dictionary.ValueOf(s), max(1, s.TimestampsUnixNano().Len())
}

// Events returns the number of events in the samples, beginning with the sample at index
// from.
func (p Part) Events(from int) (n int64) {
	for i := from; i < p.Len(); i++ {
		_, _, events := p.at(i)
		n += int64(events)
	}
	return n
}
