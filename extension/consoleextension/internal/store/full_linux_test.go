// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestAFullDisk fills the disk of a store and then frees the space again.
func TestAFullDisk(t *testing.T) {
	dir := hosttest.OnDisk(t)
	if dir == "" {
		return
	}

	log, logs := observer.New(zap.InfoLevel)
	w := newWorld(t, Options{Directory: filepath.Join(dir, "console")})
	require.NoError(t, w.Close())
	w.options.Logger = zap.New(log)
	w.open()
	live := func(from, to int) {
		for n := from; n < to; n++ {
			w.pass(time.Minute)
			for i := range 20 {
				w.PutReadings(unitNamed(fmt.Sprint(i)), []Reading{reading("cpu", "cpu_usage", w.wall, float64(n), 80)}, nil)
			}
			w.PutRefusal(Refusal{Unit: unitNamed("1"), Policy: "cpu", Why: "cooldown"})
			require.True(t, w.PutOpening(Opening{ID: fmt.Sprint("o", n), Unit: unitNamed("1"), Policy: "cpu", Triggered: w.wall}))
			w.commit()
			w.flush()
		}
	}
	live(0, 10)
	ballast, err := os.Create(filepath.Join(dir, "ballast"))
	require.NoError(t, err)
	chunk := make([]byte, 4096)
	for {
		if _, err := ballast.Write(chunk); err != nil {
			break
		}
	}
	live(10, 200)
	failures := logs.FilterMessage("console cannot write its database; what is new is kept in memory, within bounds").Len()
	require.Positive(t, failures)
	require.Less(t, failures, 20, "each failed write is logged")
	require.Empty(t, w.db.aside())
	require.Len(t, w.openingIDs(OpeningQuery{}), 200)
	trends, err := w.Trends(t.Context(), IDOf("node-1", "3"), time.Time{}, time.Time{}, 0)
	require.NoError(t, err)
	newest := trends[0].Points[len(trends[0].Points)-1]
	require.Equal(t, w.wall.Unix(), newest.At.Unix(), "readings are shown while they wait")
	refusals := func() int {
		all, err := w.Refusals(t.Context(), "", 0)
		require.NoError(t, err)
		return len(all)
	}
	require.Less(t, refusals(), 200, "some refusals wait for the disk")
	u, err := w.Unit(IDOf("node-1", "1"))
	require.NoError(t, err)
	require.Equal(t, 200, u.Refusals["cooldown"], "but they are counted")

	require.NoError(t, ballast.Close())
	require.NoError(t, os.Remove(ballast.Name()))
	live(200, 210)
	require.Equal(t, failures, logs.FilterMessage("console writes its database again").Len())
	require.Equal(t, 210, refusals())
	w.reopen()
	require.Len(t, w.openingIDs(OpeningQuery{}), 210)
	require.Zero(t, logs.FilterMessage("console's database damaged, set aside; starting anew").Len())

	// If a store is opened on a full disk, Open may fail, or the store may work in
	// memory. Data must not be damaged.
	require.NoError(t, w.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ballast"), nil, 0o600))
	ballast, err = os.OpenFile(filepath.Join(dir, "ballast"), os.O_WRONLY, 0)
	require.NoError(t, err)
	for {
		if _, err := ballast.Write(chunk); err != nil {
			break
		}
	}
	w.open()
	require.Len(t, w.openingIDs(OpeningQuery{}), 210)
	live(210, 215)
	require.NoError(t, ballast.Close())
	require.NoError(t, os.Remove(ballast.Name()))
	w.reopen()
	require.Len(t, w.openingIDs(OpeningQuery{}), 215)
}
