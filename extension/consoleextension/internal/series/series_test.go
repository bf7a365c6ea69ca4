// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package series

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func unpacked(t *testing.T, raw []byte) map[int][]Point {
	t.Helper()
	out := map[int][]Point{}
	require.NoError(t, Unpack(raw, func(condition int, p Point) { out[condition] = append(out[condition], p) }))
	return out
}

// TestPackedPointsKeepTheirValues packs values of all sizes and signs.
func TestPackedPointsKeepTheirValues(t *testing.T) {
	values := []float32{0, 1, 0.1, 93.47, 1e-30, -2.5, -1e30, math.MaxFloat32, float32(math.Inf(1)), float32(math.Inf(-1))}
	all := map[int][]Point{}
	for i, v := range values {
		all[7] = append(all[7], New(int64(1000+10*i), v, v/3))
	}
	all[0] = []Point{{At: 5, Min: 1, Mean: 2, Max: 4, Threshold: 3, Count: 60}, New(6, float32(math.NaN()), 80), New(7, math.Float32frombits(0xFFFFFFFF), 80)}
	got := unpacked(t, Pack(all))
	require.Len(t, got, 2)
	for i, v := range values {
		p := got[7][i]
		require.Equal(t, int64(1000+10*i), p.At)
		require.Equal(t, v/3, p.Threshold)
		require.EqualValues(t, 1, p.Count)
		for _, is := range []float32{p.Min, p.Mean, p.Max} {
			if v == is || v == math.MaxFloat32 { // which is rounded to infinity
				continue
			}
			require.InEpsilon(t, v, is, 0.00004)
		}
	}
	require.Equal(t, all[0][0], got[0][0])
	for _, p := range got[0][1:] {
		require.True(t, math.IsNaN(float64(p.Mean)))
		require.EqualValues(t, 80, p.Threshold)
		require.Zero(t, p.Count)
	}
}

func TestPackKeepsTheNewestPoints(t *testing.T) {
	all := map[int][]Point{}
	for i := range maxPoints + 10 {
		all[1] = append(all[1], New(int64(i), 1, 2))
	}
	got := unpacked(t, Pack(all))
	require.Len(t, got[1], maxPoints)
	require.EqualValues(t, 10, got[1][0].At)
}

// FuzzUnpack decodes arbitrary bytes. The points must fit into a block again.
func FuzzUnpack(f *testing.F) {
	f.Add(Pack(map[int][]Point{3: {New(1, 2, 3), New(11, 2.5, 3)}}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		_ = Unpack(raw, func(condition int, p Point) {
			require.True(t, condition >= 0 && condition < MaxConditions)
			unpacked(t, Pack(map[int][]Point{condition: {p}}))
		})
	})
}

func TestThinKeepsMinimumMeanAndMaximum(t *testing.T) {
	thin := Thin([]Point{New(70, 9, 8), New(10, 1, 8), New(20, 3, 8), New(60, 5, 7), New(50, float32(math.NaN()), 6)}, 60)
	require.Equal(t, []Point{{At: 60, Min: 1, Mean: 3, Max: 5, Threshold: 7, Count: 3}, New(70, 9, 8)}, thin)
}

// TestDrawMergesPartsOfAReading draws a reading whose value and threshold arrived apart, one
// that arrived twice, and a gap.
func TestDrawMergesPartsOfAReading(t *testing.T) {
	nan := float32(math.NaN())
	var list []Stepped
	for _, p := range []Point{New(10, 1, nan), New(10, nan, 2), New(20, 1, 2), New(20, 1, 2), New(30, 1, 2), New(40, 1, 2), New(100, 1, 2)} {
		list = append(list, Stepped{Point: p})
	}
	var at []int64
	for _, p := range Draw(list, time.Time{}, time.Time{}, 0) {
		if math.IsNaN(float64(p.Mean)) {
			at = append(at, -p.At)
			continue
		}
		at = append(at, p.At)
		require.Equal(t, [4]float32{1, 1, 1, 2}, [4]float32{p.Min, p.Mean, p.Max, p.Threshold})
	}
	require.Equal(t, []int64{10, 20, 30, 40, -51, 100}, at)
}
