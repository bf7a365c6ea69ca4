// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/test/pprofstest"
)

// TestPullsOfSnapshotsAreNotAdded sends a request with two pulls of each type, and then a
// request with the third pull.
func TestPullsOfSnapshotsAreNotAdded(t *testing.T) {
	h := started(t, nil)
	r := &samples.Resource{PID: 7, Attributes: []samples.Attribute{
		{Key: "service.name", Value: "checkout"}, {Key: "hotprofile.origin", Value: "pprof"},
	}}
	location := func(name string) *samples.Location {
		return &samples.Location{Type: samples.FrameGo, Lines: []samples.Line{{Function: name}}}
	}
	a, b := location("main.a"), location("main.b")
	pull := func(into *samples.Batch, at, inA, inB int64) {
		for _, typ := range []*samples.Type{samples.PprofInuseSpace, samples.PprofGoroutines, samples.PprofAllocSpace} {
			require.True(t, into.AddValue(samples.Key{Resource: r, Type: typ, Stack: &samples.Stack{Locations: []*samples.Location{a}}}, at, inA))
			if inB > 0 {
				require.True(t, into.AddValue(samples.Key{Resource: r, Type: typ, Stack: &samples.Stack{Locations: []*samples.Location{b}}}, at, inB))
			}
		}
	}
	send := func(batch *samples.Batch) {
		for p := range otlpprofiles.NewBuilder(otlpprofiles.Options{MaxSamples: 1 << 20, MaxProfileBytes: 1 << 25, MaxRequestBytes: 1 << 25}).Build(batch) {
			require.NoError(t, h.consume(context.Background(), p))
		}
	}
	batch := samples.NewBatch(1 << 20)
	batch.Start, batch.End = pprofstest.WindowStart, pprofstest.WindowStart+pprofstest.Window
	pull(batch, pprofstest.WindowStart+1e9, 100, 7)
	pull(batch, pprofstest.WindowStart+2e9, 300, 0)
	send(batch)
	batch = samples.NewBatch(1 << 20)
	batch.Start, batch.End = pprofstest.WindowStart+pprofstest.Window, pprofstest.WindowStart+2*pprofstest.Window
	pull(batch, pprofstest.WindowStart+6e9, 50, 1)
	send(batch)
	h.clock = h.clock.Add(h.cfg.IdleTimeout)
	h.due()

	got := map[string]map[int64]int64{} // sums by type and time
	for _, name := range h.files() {
		p := h.read(name)
		typ := p.SampleType[0].Type
		if got[typ] == nil {
			got[typ] = map[int64]int64{}
		}
		for _, s := range p.Sample {
			require.Positive(t, s.Value[0])
			got[typ][(p.TimeNanos-pprofstest.WindowStart)/1e9] += s.Value[0]
		}
	}
	want := map[int64]int64{1: 107, 2: 300, 6: 51}
	require.Equal(t, map[string]map[int64]int64{
		"inuse_space": want, "goroutines": want, "alloc_space": {1: 458},
	}, got)
	require.EqualValues(t, 5*3, h.counted("pprof.samples", "written"))
	require.Zero(t, h.open.memory)
}
