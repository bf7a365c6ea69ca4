// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package monitor

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

func TestMonitorsOfTCP(t *testing.T) {
	h := newHost(t)
	names := TCPMonitors()
	var figures TCPFigures
	read := func(o Options) [3]Result {
		s, err := NewSource(h.tree, o)
		require.NoError(t, err)
		defer s.Close()
		w, err := s.Watch(h.unit, procfs.Process{}, names)
		require.NoError(t, err)
		defer w.Close()
		var out [3]Result
		w.Read(time.Now(), out[:])
		return out
	}
	for _, r := range read(Options{}) {
		require.ErrorIs(t, r.Err, NoConnections)
	}
	var of cgroup.Group
	with := Options{TCP: func(g cgroup.Group, p procfs.Process) TCPFigures {
		of = g
		require.Zero(t, p)
		return figures
	}}
	shared := errors.New("shared")
	figures = TCPFigures{Segments: 200, Retransmits: 10, RoundTrip: 3, Bytes: 1000, Failures: 8, Elapsed: 4 * time.Second, FailuresErr: shared}
	got := read(with)
	require.Equal(t, h.unit.ID, of.ID)
	require.ErrorIs(t, got[0].Err, shared)
	figures.FailuresErr = nil
	got = read(with)
	for i, want := range []float64{2, 5, 3} { // 1/s, %, ms
		kind, ok := KindOf(names[i])
		require.True(t, ok)
		require.InDelta(t, want, kind.Scale*got[i].Reading.Num/got[i].Reading.Den, 1e-9, names[i])
	}
}
