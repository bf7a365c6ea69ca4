// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// report returns the report of a peer whose counters began at start.
func report(of PeerKey, start, at time.Time, sent float64) PeerReport {
	return PeerReport{PeerKey: of, Start: start, At: at, Index: PeerSent, Value: sent}
}

func TestPeersAreWhatIsNewInTheirCounters(t *testing.T) {
	w := newWorld(t, Options{noSync: true})
	u, db := unitNamed("shop"), PeerKey{Address: "10.1.2.3", Direction: "outbound", Port: 5432, Transport: "tcp"}
	id := IDOf("node-1", "shop")
	sent := func(from, to time.Time) int64 {
		t.Helper()
		list, err := w.Peers(t.Context(), id, from, to)
		require.NoError(t, err)
		n := int64(0)
		for _, p := range list {
			require.Equal(t, db, p.PeerKey)
			n += p.Sent
		}
		return n
	}
	begin := w.wall
	// The growth of a counter before its first report is not counted.
	w.PutPeers(u, []PeerReport{report(db, begin.Add(-time.Hour), w.wall, 1_000_000)})
	require.Zero(t, sent(time.Time{}, time.Time{}))
	for n := range 10 {
		w.pass(10 * time.Second)
		w.PutPeers(u, []PeerReport{report(db, begin.Add(-time.Hour), w.wall, 1_000_000+100*float64(n+1))})
	}
	require.EqualValues(t, 1000, sent(time.Time{}, time.Time{}))
	w.flush()
	w.flush() // the second flush must not write the data again
	require.EqualValues(t, 1000, sent(time.Time{}, time.Time{}))
	w.reopen()
	require.EqualValues(t, 1000, sent(time.Time{}, time.Time{}))

	// The counters begin again at 0, because the unit was not hot for a while.
	w.pass(time.Hour)
	again := w.wall
	w.pass(10 * time.Second)
	w.PutPeers(u, []PeerReport{report(db, again, w.wall, 7)})
	w.PutPeers(u, []PeerReport{report(db, again, w.wall, 7)}) // the same report is sent twice
	require.EqualValues(t, 1007, sent(time.Time{}, time.Time{}))
	w.flush()
	require.EqualValues(t, 1000, sent(begin, begin.Add(10*time.Minute)))
	require.EqualValues(t, 7, sent(again, w.wall))

	for range 49 * 6 {
		w.pass(10 * time.Minute)
		w.PutReadings(u, []Reading{reading("cpu", "cpu_usage", w.wall, 1, 2)}, nil)
		w.flush()
	}
	require.Zero(t, sent(time.Time{}, time.Time{}))
	require.Zero(t, w.peers)
	_, err := w.Peers(t.Context(), "none", begin, w.wall)
	require.ErrorIs(t, err, ErrNotFound)
}

// TestAPeerWhoseNameBecomesKnownIsOne covers a peer that is
// identified as a unit only later.
func TestAPeerWhoseNameBecomesKnownIsOne(t *testing.T) {
	w := newWorld(t, Options{noSync: true})
	u, key := unitNamed("shop"), PeerKey{Address: "10.1.2.3", Direction: "outbound", Port: 5432, Transport: "tcp"}
	begin := w.wall
	for i, name := range []PeerName{{}, {Name: "db"}, {Service: "orders", Name: "db"}, {}} {
		w.pass(10 * time.Second)
		r := report(key, begin, w.wall, float64(100*(i+1)))
		r.PeerName = name
		w.PutPeers(u, []PeerReport{r})
		if i%2 == 1 {
			w.flush()
		}
	}
	w.PutReadings(unitNamed("db"), []Reading{reading("cpu", "cpu_usage", w.wall, 1, 2)}, nil)
	list, err := w.Peers(t.Context(), IDOf("node-1", "shop"), time.Time{}, time.Time{})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, PeerName{Service: "orders", Name: "db"}, list[0].PeerName)
	require.Equal(t, IDOf("node-1", "db"), list[0].Unit)
	require.EqualValues(t, 400, list[0].Sent, "each byte once")
}

// TestPeersAreBounded covers units with many peers that have long names.
func TestPeersAreBounded(t *testing.T) {
	const limit = 4 << 20
	w := newWorld(t, Options{noSync: true, MaxBytes: limit})
	long := strings.Repeat("long", 100)
	begin := w.wall
	for n := range 60 {
		w.pass(time.Minute)
		for i := range 320 / (1 + min(n, 9)) { // all units at first, then fewer
			reports := make([]PeerReport, 0, maxUnitPeers+1)
			for k := range maxUnitPeers + 1 {
				r := report(PeerKey{Address: fmt.Sprint(k, " ", i), Port: k}, begin, w.wall, float64(n*k*i))
				r.Service = long
				reports = append(reports, r)
			}
			w.PutPeers(unitNamed(fmt.Sprint(i)), reports)
		}
		w.flush()
		require.LessOrEqual(t, w.peers, maxPeers)
	}
	n, err := w.db.number("SELECT sum(length(data)) FROM blocks WHERE tier = ?", peerTier)
	require.NoError(t, err)
	require.LessOrEqual(t, n, int64(limit/20))
	require.LessOrEqual(t, w.Usage().Bytes, int64(limit))
	require.Positive(t, w.Usage().Dropped["peers"])
	require.Positive(t, w.Usage().Dropped["blocks of peers"])
	list, err := w.Peers(t.Context(), IDOf("node-1", "7"), w.wall.Add(-time.Minute), w.wall)
	require.NoError(t, err)
	require.LessOrEqual(t, len(list), maxUnitPeers)
}
