// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/pprof/profile"
)

// read returns a profile, which is the caller's.
func (f *profileFiles) read(ctx context.Context, id string, key ProfileKey) (*profile.Profile, error) {
	// One is read from disk at a time, which bounds memory.
	select {
	case f.cache.loading <- struct{}{}:
		defer func() { <-f.cache.loading }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	at := profileAt{id, key}
	for tries := 0; ; tries++ {
		f.mu.Lock()
		o := f.openings[id]
		var p *profileFile
		if o != nil {
			p = o.profiles[key]
		}
		if p == nil || len(p.segments) == 0 {
			damaged := p != nil && p.Damaged > 0
			f.mu.Unlock()
			if damaged {
				return nil, ErrDamaged
			}
			return nil, ErrNotFound
		}
		segments, version := slices.Clone(p.segments), p.version
		f.mu.Unlock()

		have := f.cache.get(at, f.uptime())
		if have != nil && have.version == version && have.of == p {
			return clone(have.profile), nil
		}
		var merged *profile.Profile
		if have != nil && have.of == p && len(have.segments) < len(segments) && slices.Equal(have.segments, segments[:len(have.segments)]) {
			merged = have.profile
			segments = segments[len(have.segments):]
		}
		merged, again, err := f.plusAll(ctx, o, p, merged, segments, tries < 10)
		if err != nil {
			return nil, err
		}
		if again {
			continue
		}
		f.mu.Lock()
		all := slices.Clone(p.segments)
		same := p.version == version
		f.mu.Unlock()
		if same {
			f.cache.put(at, &cachedProfile{of: p, version: version, segments: all, profile: merged, size: sizeOf(merged), used: f.uptime()})
		}
		return clone(merged), nil
	}
}

// plusAll adds the profiles in files to merged. again is true if a file is damaged, or was
// merged or removed meanwhile: then the profile has other files. Unless retry is true, a
// file that is not there is damaged.
func (f *profileFiles) plusAll(ctx context.Context, o *openingFiles, p *profileFile, merged *profile.Profile, files []segment, retry bool) (sum *profile.Profile, again bool, err error) {
	for _, s := range files {
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
		merged, err = f.plus(o, merged, s)
		switch {
		case errors.Is(err, fs.ErrNotExist) && retry:
			return nil, true, nil
		case errors.Is(err, errContent) || errors.Is(err, fs.ErrNotExist):
			f.damaged(o, p, s, err)
			return nil, true, nil
		case err != nil:
			return nil, false, fmt.Errorf("read the console's profile: %w", err)
		}
	}
	return merged, false, nil
}

type profileAt struct {
	opening string
	key     ProfileKey
}

// profileCache has the profiles that were read last. What is in it is not changed.
type profileCache struct {
	max     int
	loading chan struct{} // is held to read one from disk

	mu      sync.Mutex
	entries map[profileAt]*cachedProfile
	size    int
}

type cachedProfile struct {
	of       *profileFile
	version  int
	segments []segment
	profile  *profile.Profile
	size     int // estimated
	used     time.Duration
}

func (c *profileCache) get(at profileAt, now time.Duration) *cachedProfile {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[at]
	if e != nil {
		e.used = now
	}
	return e
}

// put adds a profile. Those that were not used for the longest time give way.
func (c *profileCache) put(at profileAt, e *cachedProfile) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delete(at)
	for len(c.entries) > 0 && c.size+e.size > c.max {
		var oldest profileAt
		first := true
		for at, e := range c.entries {
			if first || e.used < c.entries[oldest].used {
				oldest, first = at, false
			}
		}
		c.delete(oldest)
	}
	if e.size > c.max {
		return
	}
	if c.entries == nil {
		c.entries = make(map[profileAt]*cachedProfile)
	}
	c.entries[at] = e
	c.size += e.size
}

// delete removes an entry. The lock is held.
func (c *profileCache) delete(at profileAt) {
	if e := c.entries[at]; e != nil {
		c.size -= e.size
		delete(c.entries, at)
	}
}

// remove removes the profiles of an opening.
func (c *profileCache) remove(opening string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := range c.entries {
		if at.opening == opening {
			c.delete(at)
		}
	}
}

// forget removes what was not used for a time.
func (c *profileCache) forget(now, after time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at, e := range c.entries {
		if now-e.used >= after {
			c.delete(at)
		}
	}
}

// sizeOf returns the estimated memory of a profile.
func sizeOf(p *profile.Profile) (n int) {
	const (
		function = 128
		mapping  = 160
		location = 112
		line     = 40
		sample   = 144
		labels   = 336 // a map with a few entries
	)
	n = 1 << 10
	for _, f := range p.Function {
		n += function + len(f.Name) + len(f.Filename)
		if f.SystemName != f.Name {
			n += len(f.SystemName)
		}
	}
	for _, m := range p.Mapping {
		n += mapping + len(m.File) + len(m.BuildID)
	}
	for _, l := range p.Location {
		n += location + line*len(l.Line)
	}
	for _, s := range p.Sample {
		n += sample + 8*len(s.Location) + 8*len(s.Value)
		if len(s.Label) > 0 {
			n += labels + 40*len(s.Label)
		}
		if len(s.NumLabel) > 0 {
			n += labels + 40*len(s.NumLabel)
		}
	}
	return n
}

// clone returns a copy that shares texts alone. profile.Copy changes fields of its source.
func clone(p *profile.Profile) *profile.Profile {
	out := &profile.Profile{
		DefaultSampleType: p.DefaultSampleType,
		Comments:          slices.Clone(p.Comments),
		DropFrames:        p.DropFrames,
		KeepFrames:        p.KeepFrames,
		DocURL:            p.DocURL,
		TimeNanos:         p.TimeNanos,
		DurationNanos:     p.DurationNanos,
		Period:            p.Period,
	}
	valueType := func(t *profile.ValueType) *profile.ValueType {
		if t == nil {
			return nil
		}
		return &profile.ValueType{Type: t.Type, Unit: t.Unit}
	}
	out.PeriodType = valueType(p.PeriodType)
	for _, t := range p.SampleType {
		out.SampleType = append(out.SampleType, valueType(t))
	}
	mappings := make(map[*profile.Mapping]*profile.Mapping, len(p.Mapping))
	for _, m := range p.Mapping {
		c := &profile.Mapping{
			ID: m.ID, Start: m.Start, Limit: m.Limit, Offset: m.Offset, File: m.File, BuildID: m.BuildID,
			HasFunctions: m.HasFunctions, HasFilenames: m.HasFilenames, HasLineNumbers: m.HasLineNumbers, HasInlineFrames: m.HasInlineFrames,
			KernelRelocationSymbol: m.KernelRelocationSymbol,
		}
		mappings[m] = c
		out.Mapping = append(out.Mapping, c)
	}
	functions := make(map[*profile.Function]*profile.Function, len(p.Function))
	slab := make([]profile.Function, len(p.Function))
	for i, f := range p.Function {
		slab[i] = profile.Function{ID: f.ID, Name: f.Name, SystemName: f.SystemName, Filename: f.Filename, StartLine: f.StartLine}
		functions[f] = &slab[i]
		out.Function = append(out.Function, &slab[i])
	}
	locations := make(map[*profile.Location]*profile.Location, len(p.Location))
	locationSlab := make([]profile.Location, len(p.Location))
	for i, l := range p.Location {
		c := &locationSlab[i]
		*c = profile.Location{ID: l.ID, Mapping: mappings[l.Mapping], Address: l.Address, Line: make([]profile.Line, len(l.Line)), IsFolded: l.IsFolded}
		for k, line := range l.Line {
			c.Line[k] = profile.Line{Function: functions[line.Function], Line: line.Line, Column: line.Column}
		}
		locations[l] = c
		out.Location = append(out.Location, c)
	}
	out.Sample = cloneSamples(p.Sample, locations)
	return out
}

// cloneSamples returns copies of samples, with other locations.
func cloneSamples(of []*profile.Sample, locations map[*profile.Location]*profile.Location) []*profile.Sample {
	depth, values := 0, 0
	for _, s := range of {
		depth += len(s.Location)
		values += len(s.Value)
	}
	samples := make([]profile.Sample, len(of))
	stacks, valueSlab := make([]*profile.Location, depth), make([]int64, values)
	out := make([]*profile.Sample, len(of))
	for i, s := range of {
		c := &samples[i]
		n := len(s.Location)
		c.Location, stacks = stacks[:n:n], stacks[n:]
		for k, l := range s.Location {
			c.Location[k] = locations[l]
		}
		n = copy(valueSlab, s.Value)
		c.Value, valueSlab = valueSlab[:n:n], valueSlab[n:]
		c.Label = cloneLabels(s.Label)
		c.NumLabel = cloneLabels(s.NumLabel)
		c.NumUnit = cloneLabels(s.NumUnit)
		out[i] = c
	}
	return out
}

func cloneLabels[V any](m map[string][]V) map[string][]V {
	if m == nil {
		return nil
	}
	out := maps.Clone(m)
	for k, v := range out {
		out[k] = slices.Clone(v)
	}
	return out
}
