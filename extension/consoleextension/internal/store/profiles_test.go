// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/profilefiles"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/pprofconv"
	"github.com/hotprofile/hotprofile/test/pprofstest"
)

// addInput adds samples in the same way as the intake. The
// samples belong to the opening o.
func (w *world) addInput(in pprofstest.Input, o Opening) {
	pd := in.Build(w.t)
	d := dictionary.NewReader(pd.Dictionary())
	for _, rp := range pd.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			for _, p := range sp.Profiles().All() {
				for _, part := range pprofconv.PartsOf(d.ProfileType(p), p) {
					w.AddSamples(o, profilefiles.Samples{Executable: "app", Scope: sp.Scope().Name(), Dictionary: d, Part: part, Attributes: pprofconv.Attributes(d, p)})
				}
			}
		}
	}
}

// written waits until the profiles of openings are on disk.
func (w *world) written(ids ...string) {
	w.t.Helper()
	w.pass(4 * time.Second)
	for _, id := range ids {
		require.Eventually(w.t, func() bool {
			o, err := w.Opening(w.t.Context(), id)
			return err == nil && len(o.Profiles) > 0
		}, time.Minute, time.Millisecond)
	}
}

func phased(id string) map[string]string {
	reason := pprofstest.Reason("0a1b", id, "2026-05-28T20:26:42Z")
	reason[attr.TriggerPhase] = "both"
	return reason
}

// TestOldestOpeningsMakeRoom checks that the store first deletes the profiles that ended
// first, and keeps their openings.
func TestOldestOpeningsMakeRoom(t *testing.T) {
	profiled := func(o Options, n int) *world {
		w := newWorld(t, o)
		var ids []string
		for i := range n {
			id := fmt.Sprintf("t%02d", i)
			ids = append(ids, id)
			w.pass(time.Minute)
			w.addInput(pprofstest.Input{Profile: phased(id), Hot: 5, Later: time.Duration(i) * time.Minute},
				Opening{ID: id, Unit: unitNamed("u"), Triggered: time.Unix(0, pprofstest.WindowStart).Add(time.Duration(i) * time.Minute)})
			w.commit()
		}
		w.written(ids...)
		return w
	}
	w := profiled(Options{}, 12)
	w.writing.Lock()
	w.options.MaxBytes = w.db.size() + w.profiles.Size()*5/12
	w.Store.options.MaxBytes = w.options.MaxBytes
	w.writing.Unlock()
	require.NoError(t, w.makeRoom())
	all, err := w.Openings(t.Context(), OpeningQuery{})
	require.NoError(t, err)
	require.Len(t, all, 12)
	for i, o := range all {
		require.Equal(t, i < 5, len(o.Profiles) > 0, "opening %d", i)
	}
	require.EqualValues(t, 7, w.Usage().Dropped[profilefiles.DroppedProfiles])
	require.Eventually(t, func() bool {
		entries, err := os.ReadDir(filepath.Join(w.options.Directory, "profiles"))
		return err == nil && len(entries) == 5
	}, time.Minute, time.Millisecond)
}

// TestOpeningComesFromItsProfiles covers profiles and events in any order, and profiles
// without an event. The opening must exist as long as its profiles exist.
func TestOpeningComesFromItsProfiles(t *testing.T) {
	for _, order := range [][]string{{"profiles"}, {"profiles", "event"}, {"event", "profiles"}} {
		t.Run(strings.Join(order, ", then "), func(t *testing.T) {
			w := newWorld(t, Options{})
			ctx := t.Context()
			of := Opening{
				ID: "t1", Unit: Unit{Host: "h", Name: "u", Resource: map[string]string{"service.name": "checkout"}},
				Policy: "cpu", Kind: "hot", Monitor: "cpu_usage", Value: 2, Threshold: 1, Triggered: w.wall, Until: w.wall.Add(time.Minute),
			}
			event := of
			event.Closed, event.Why, event.TraceID = w.wall.Add(time.Minute), "duration", strings.Repeat("a", 32)
			for _, what := range order {
				if what == "event" {
					require.True(t, w.PutOpening(event))
				} else {
					w.addInput(pprofstest.Input{Profile: phased("t1"), Hot: 3}, of)
				}
			}
			w.written("t1")
			check := func() {
				t.Helper()
				o, err := w.Opening(ctx, "t1")
				require.NoError(t, err)
				require.Equal(t, "checkout", o.Unit.Resource["service.name"])
				require.Equal(t, IDOf("h", "u"), o.Unit.ID)
				require.Equal(t, []any{"cpu", "hot", "cpu_usage", 2.0, 1.0}, []any{o.Policy, o.Kind, o.Monitor, o.Value, o.Threshold})
				require.True(t, o.Until.Equal(of.Until))
				require.Equal(t, len(order) == 2, !o.Closed.IsZero())
				require.Len(t, o.Profiles, 1)
				p, err := w.Profile(ctx, "t1", o.Profiles[0].ProfileKey)
				require.NoError(t, err)
				require.Len(t, p.Sample, 1)
				require.Equal(t, "main.hot", p.Sample[0].Location[0].Line[0].Function.Name)
				require.EqualValues(t, 3, p.Sample[0].Value[0])
				require.Equal(t, []string{"both"}, p.Sample[0].Label[attr.TriggerPhase])
			}
			check()
			w.reopen()
			check()
			// The database is damaged and set aside, but the profiles still exist.
			require.NoError(t, w.Close())
			require.NoError(t, os.Truncate(filepath.Join(w.options.Directory, "console.db"), 100))
			if order[0] == "profiles" {
				order = order[:1] // the files have what was known when the samples came
			}
			w.open()
			check()

			other := of
			other.Unit.Host = "another"
			w.addInput(pprofstest.Input{Profile: phased("t1"), Hot: 5}, other)
			require.EqualValues(t, 5, w.Usage().Dropped[droppedNotKept], "another unit has the id")
			w.addInput(pprofstest.Input{Profile: phased("t1"), Hot: 5}, Opening{Unit: of.Unit})
			require.EqualValues(t, 5, w.Usage().Dropped[droppedNoOpening])

			require.Positive(t, w.profiles.Size())
			w.pass(w.Store.options.MaxAge + time.Minute)
			w.maintain()
			_, err := w.Opening(ctx, "t1")
			require.ErrorIs(t, err, ErrNotFound)
			require.Eventually(t, func() bool { return w.profiles.Size() == 0 }, time.Minute, time.Millisecond)
		})
	}
}

// TestIndexOfAnOpeningIsBounded covers samples whose resource is large.
func TestIndexOfAnOpeningIsBounded(t *testing.T) {
	w := newWorld(t, Options{})
	of := Opening{ID: "t1", Unit: Unit{Name: "u", Resource: map[string]string{}}, NothingExported: strings.Repeat("x", 1<<20)}
	for i := range 1000 {
		of.Unit.Resource[fmt.Sprint("key", i)] = strings.Repeat("x", 1000)
	}
	w.addInput(pprofstest.Input{Profile: phased("t1"), Hot: 1}, of)
	w.written("t1")
	require.NoError(t, w.Close())
	indexes := 0
	require.NoError(t, filepath.WalkDir(filepath.Join(w.options.Directory, "profiles"), func(path string, e fs.DirEntry, err error) error {
		require.NoError(t, err)
		if filepath.Ext(path) == ".json" {
			info, err := e.Info()
			require.NoError(t, err)
			require.Less(t, info.Size(), int64(16<<10))
			indexes++
		}
		return nil
	}))
	require.Equal(t, 1, indexes)
}

func TestIDsOfOpenings(t *testing.T) {
	for _, id := range []string{"", "../x", "a/b", "a.b", ".", "a b", "ä", strings.Repeat("a", 65)} {
		require.False(t, validID(id), id)
	}
	require.True(t, validID("5f0e9a4e6a3b1c22"))
}
