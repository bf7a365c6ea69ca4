// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQuantilesOfStudent(t *testing.T) {
	for degrees, want := range map[float64]float64{1: 12.706, 2: 4.303, 4: 2.776, 9: 2.262, 19: 2.093, 100: 1.984} {
		require.InDelta(t, want, student95(degrees), 0.02, "%v degrees of freedom", degrees)
	}
}

func TestSlowerIsOfPairs(t *testing.T) {
	got := slower([]float64{1.1, 2.2, 3.3}, []float64{1, 2, 3})
	require.InDelta(t, 10, got.mean, 1e-9, "each is 10 % slower, however long it takes")
	require.InDelta(t, 0, got.half, 1e-9)

	got = slower([]float64{1.0, 1.2}, []float64{1, 1})
	require.InDelta(t, 10, got.mean, 1e-9)
	require.InDelta(t, 12.706*10, got.half, 1e-6)
	require.InDelta(t, got.mean+got.half, got.atMost(), 1e-9)
}

func TestOnePairSaysNothing(t *testing.T) {
	require.True(t, math.IsInf(slower([]float64{1}, []float64{1}).half, 1))
}
