// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofconv

import (
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/test/pprofstest"
)

// BenchmarkAdd measures how long adding a profile with 2,000 known stacks takes.
// The baseline copies the profile.
func BenchmarkAdd(b *testing.B) {
	const events = 2000
	in := pprofstest.Input{Resource: pprofstest.Checkout(), Stacks: events}.Build(b)
	perSample := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/events, "ns/sample")
	}
	d := dictionary.NewReader(in.Dictionary())
	b.Run("add", func(b *testing.B) {
		a := NewBuilder(d.ProfileType(profileOf(in)), Options{})
		b.ReportAllocs()
		for b.Loop() {
			a.Add(d, Part{Profile: profileOf(in)}, nil, 0, math.MaxInt)
		}
		perSample(b)
	})
	b.Run("write", func(b *testing.B) {
		a := NewBuilder(d.ProfileType(profileOf(in)), Options{})
		a.Add(d, Part{Profile: profileOf(in)}, nil, 0, math.MaxInt)
		p := a.Finish("")
		b.ReportAllocs()
		for b.Loop() {
			require.NoError(b, p.Write(io.Discard))
		}
		perSample(b)
	})
	b.Run("baseline: copy", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			in.CopyTo(pprofile.NewProfiles())
		}
		perSample(b)
	})
}
