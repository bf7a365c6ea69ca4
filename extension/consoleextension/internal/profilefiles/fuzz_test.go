// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package profilefiles

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/test/pprofstest"
)

// FuzzSamples sends arbitrary profiles. Each sample must be either written to disk or
// counted as dropped. The files must be readable, even by a store that is opened later.
func FuzzSamples(f *testing.F) {
	for _, in := range []pprofstest.Input{
		{Profile: phased("t1", "before"), Hot: 3, Cold: 2, Stacks: 20},
		{Profile: pprofstest.Reason("", "../../x", ""), Hot: 1},
	} {
		b, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(func() pprofile.Profiles {
			p := pprofile.NewProfiles()
			in.Build(f).CopyTo(p)
			return p
		}())
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		p, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(in)
		if err != nil {
			return
		}
		f := openFiles(t, t.TempDir(), func(l *limits) { l.profile, l.openingBytes = 256<<10, 64<<10 })
		sent := int64(0)
		for range 2 {
			for _, s := range samplesOf(p) {
				sent += s.Part.Events(0)
				f.Add(s.opening, s.Samples)
			}
			f.later(f.limits.flush)
		}
		check := func() (kept int64) {
			for id := range f.openings {
				for _, i := range f.Infos(id) {
					if i.Samples > 0 {
						p := f.profile(id, i.ProfileKey)
						require.NoError(t, p.CheckValid())
					}
					kept += i.Samples
				}
			}
			return kept
		}
		lost := int64(0)
		for what, n := range f.dropped {
			require.NotContains(t, []string{DroppedDamaged, DroppedDisk}, what)
			lost += n
		}
		kept := check()
		require.Equal(t, sent, kept+lost)
		f.later(f.limits.idle)
		require.Zero(t, f.memory)
		f = openFiles(t, f.options.Directory, nil)
		require.Equal(t, kept, check())
		require.Empty(t, f.dropped)
	})
}

// FuzzFiles fills the files of an opening with arbitrary bytes. The store must
// still open and answer queries.
func FuzzFiles(f *testing.F) {
	seed := openFiles(f, f.TempDir(), nil)
	seed.send(pprofstest.Input{Profile: phased("t1", "before"), Hot: 3, Cold: 2})
	seed.later(seed.limits.flush)
	dir := seed.openings["t1"].dir
	index, err := os.ReadFile(filepath.Join(dir, indexName))
	require.NoError(f, err)
	segments, _ := seed.paths()
	content, err := os.ReadFile(segments[0])
	require.NoError(f, err)
	f.Add(index, content)
	name := filepath.Base(segments[0])
	f.Fuzz(func(t *testing.T, index, content []byte) {
		parent := t.TempDir()
		root := filepath.Join(parent, "profiles")
		of := filepath.Join(root, hashed("t1"))
		require.NoError(t, os.MkdirAll(of, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(of, indexName), index, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(of, name), content, 0o600))
		outside := filepath.Join(parent, "outside")
		require.NoError(t, os.WriteFile(outside, content, 0o600))
		f := openFiles(t, root, nil)
		for id := range f.openings {
			for _, i := range f.Infos(id) {
				p, err := f.Profile(context.Background(), id, i.ProfileKey)
				if err == nil {
					require.NoError(t, p.CheckValid())
				} else {
					require.True(t, errors.Is(err, ErrDamaged) || errors.Is(err, ErrNotFound), "%v", err)
				}
			}
		}
		f.Remove("t1")
		f.emptyTrash()
		require.FileExists(t, outside)
		if len(f.openings) == 0 {
			require.NoDirExists(t, of)
		}
	})
}
