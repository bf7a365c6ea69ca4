// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package profilefiles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/google/pprof/profile"
)

// Profile returns a profile. The caller owns the profile.
func (f *Files) Profile(ctx context.Context, id string, key ProfileKey) (*profile.Profile, error) {
	// To limit memory, only one profile is read from disk at a time.
	if err := f.reading.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer f.reading.Release(1)
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
		merged, err := f.merged(ctx, o, p, segments, tries < 10)
		if err != nil {
			return nil, fmt.Errorf("read the console's profile: %w", err)
		}
		if merged != nil {
			return merged, nil
		}
	}
}

// merged merges the profiles in files. Damaged files are omitted. It returns nil if
// all files are damaged, or if a file was merged or removed during the call. The
// caller may then retry with the current files of the profile. If retry is false, a
// missing file counts as damaged.
func (f *Files) merged(ctx context.Context, o *opening, p *profileFile, files []segment, retry bool) (*profile.Profile, error) {
	var all []*profile.Profile
	var start, end int64
	for _, s := range files {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		next, err := readProfile(filepath.Join(o.dir, s.Name))
		missing := errors.Is(err, fs.ErrNotExist)
		switch {
		case err == nil:
			all = append(all, next)
			start = cmp.Or(min(start, next.TimeNanos), start, next.TimeNanos)
			end = max(end, next.TimeNanos+next.DurationNanos)
		case !missing && !errors.Is(err, errContent):
			return nil, err
		case missing && retry || !f.damaged(o, p, s, err):
			return nil, nil //nolint:nilnil // described above
		}
	}
	if len(all) == 0 {
		return nil, nil //nolint:nilnil // described above
	}
	if len(all) == 1 {
		return all[0], nil
	}
	merged, err := profile.Merge(all)
	if err != nil {
		return nil, err
	}
	merged.Comments = merged.Comments[:min(len(merged.Comments), maxComments)]
	merged.TimeNanos, merged.DurationNanos = start, end-start // Merge adds the durations
	return merged, nil
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
