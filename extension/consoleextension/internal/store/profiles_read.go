// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/google/pprof/profile"
)

// read returns a profile, which the caller owns.
func (f *profileFiles) read(ctx context.Context, id string, key ProfileKey) (*profile.Profile, error) {
	// Only one profile is read from disk at a time, which bounds memory.
	select {
	case f.reading <- struct{}{}:
		defer func() { <-f.reading }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for tries := 0; ; tries++ {
		f.mu.Lock()
		o := f.openings[id]
		var p *profileFile
		if o != nil {
			p = o.profile(key)
		}
		if p == nil || len(p.Segments) == 0 {
			damaged := p != nil && p.Damaged > 0
			f.mu.Unlock()
			if damaged {
				return nil, ErrDamaged
			}
			return nil, ErrNotFound
		}
		segments := slices.Clone(p.Segments)
		f.mu.Unlock()
		merged, again, err := f.plusAll(ctx, o, p, segments, tries < 10)
		if !again {
			return merged, err
		}
	}
}

// plusAll merges the profiles in files. again is true if a file is damaged, or was merged
// or removed meanwhile. The caller must then retry with the current files of the profile.
// If retry is false, a missing file counts as damaged.
func (f *profileFiles) plusAll(ctx context.Context, o *openingFiles, p *profileFile, files []segment, retry bool) (merged *profile.Profile, again bool, err error) {
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
