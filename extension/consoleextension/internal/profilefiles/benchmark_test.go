// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package profilefiles

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/pprofconv"
	"github.com/hotprofile/hotprofile/test/pprofstest"
)

// BenchmarkAddSamples measures the time to add a profile of 2,000 known stacks to an
// opening, and the time to write the added samples. The baseline is the time that the
// pprof exporter needs for the same samples.
func BenchmarkAddSamples(b *testing.B) {
	const events = 2000
	in := samplesOf(pprofstest.Input{Profile: phased("t1", "both"), Stacks: events}.Build(b))
	perSample := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/events, "ns/sample")
	}
	b.Run("add", func(b *testing.B) {
		f := openFiles(b, b.TempDir(), nil)
		b.ReportAllocs()
		for b.Loop() {
			f.Add(in[0].opening, in[0].Samples)
		}
		perSample(b)
	})
	b.Run("baseline: builder", func(b *testing.B) {
		p := pprofconv.NewBuilder(pprofconv.TypeOf(in[0].Dictionary, in[0].Part.Profile), pprofconv.Options{Labels: []string{attr.TriggerPhase}})
		b.ReportAllocs()
		for b.Loop() {
			p.Add(in[0].Dictionary, in[0].Part, in[0].Attributes, 0, math.MaxInt)
		}
		perSample(b)
	})
	b.Run("flush", func(b *testing.B) {
		f := openFiles(b, b.TempDir(), func(l *limits) { l.openingBytes, l.profile = math.MaxInt64, math.MaxInt })
		b.ReportAllocs()
		for b.Loop() {
			f.Add(in[0].opening, in[0].Samples)
			f.later(f.limits.flush)
		}
		perSample(b)
	})
}

// BenchmarkProfile measures the time to read a profile of 10,000 stacks.
func BenchmarkProfile(b *testing.B) {
	f := openFiles(b, b.TempDir(), nil)
	f.send(pprofstest.Input{Profile: phased("t1", "both"), Stacks: 10_000})
	f.later(f.limits.flush)
	infos := f.Infos("t1")
	require.Len(b, infos, 1)
	require.EqualValues(b, 10_000, infos[0].Samples)
	b.ReportAllocs()
	for b.Loop() {
		_, err := f.Profile(context.Background(), "t1", infos[0].ProfileKey)
		require.NoError(b, err)
	}
}
