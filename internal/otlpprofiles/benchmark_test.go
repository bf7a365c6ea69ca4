// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package otlpprofiles

import (
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// BenchmarkExport converts a full batch to bytes and measures the time per event. The
// baselines are marshalling alone, and building a pprof file with the same samples.
func BenchmarkExport(b *testing.B) {
	const events = 5000
	batch := load(events, 1000, 20)
	perEvent := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/events, "ns/event")
	}
	marshaler := pprofile.ProtoMarshaler{}

	b.Run("build", func(b *testing.B) {
		builder := NewBuilder(options())
		b.ReportAllocs()
		for b.Loop() {
			for p := range builder.Build(batch) {
				_ = p
			}
		}
		perEvent(b)
	})
	b.Run("build and marshal", func(b *testing.B) {
		builder := NewBuilder(options())
		b.ReportAllocs()
		for b.Loop() {
			for p := range builder.Build(batch) {
				_, err := marshaler.MarshalProfiles(p)
				require.NoError(b, err)
			}
		}
		perEvent(b)
	})
	b.Run("baseline: marshal alone", func(b *testing.B) {
		var all []pprofile.Profiles
		for p := range NewBuilder(options()).Build(batch) {
			all = append(all, p)
		}
		b.ReportAllocs()
		for b.Loop() {
			for _, p := range all {
				_, err := marshaler.MarshalProfiles(p)
				require.NoError(b, err)
			}
		}
		perEvent(b)
	})
	b.Run("baseline: pprof build and encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			require.NoError(b, pprofOf(batch).WriteUncompressed(discard{}))
		}
		perEvent(b)
	})
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// pprofOf builds a pprof profile as a baseline.
func pprofOf(batch *samples.Batch) *profile.Profile {
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}}}
	locations := map[*samples.Location]*profile.Location{}
	functions := map[string]*profile.Function{}
	for _, s := range batch.Samples() {
		out := &profile.Sample{Value: []int64{int64(len(s.Times))}}
		for _, l := range s.Stack.Locations {
			loc := locations[l]
			if loc == nil {
				loc = &profile.Location{ID: uint64(len(locations) + 1), Address: l.Address}
				for _, line := range l.Lines {
					f := functions[line.Function]
					if f == nil {
						f = &profile.Function{ID: uint64(len(functions) + 1), Name: line.Function, SystemName: line.SystemName, Filename: line.File}
						functions[line.Function] = f
						p.Function = append(p.Function, f)
					}
					loc.Line = append(loc.Line, profile.Line{Function: f, Line: line.Line})
				}
				locations[l] = loc
				p.Location = append(p.Location, loc)
			}
			out.Location = append(out.Location, loc)
		}
		p.Sample = append(p.Sample, out)
	}
	return p
}
