// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRatiosAreOfTheSameRound(t *testing.T) {
	took := func(d time.Duration) turn { return turn{run: run{cpu: d, samples: 1}} }
	ours := &rival{turns: map[int]turn{0: took(2), 1: took(30), 2: took(5), 3: took(1)}}
	other := &rival{turns: map[int]turn{0: took(4), 1: took(100), 2: took(1)}} // other has no turn in the last round
	cpu := func(t turn) float64 { return float64(t.cpu) }
	c, ok := ratio(ours, other, cpu)
	require.True(t, ok)
	require.Equal(t, compared{middle: 0.5, least: 0.3, most: 5}, c)
	require.Equal(t, "0.50 (0.30 to 5.00)", c.String())

	_, ok = ratio(ours, &rival{}, cpu)
	require.False(t, ok, "it had no turn")
	_, ok = ratio(ours, &rival{turns: map[int]turn{0: took(0)}}, cpu)
	require.False(t, ok, "nothing can be divided by")
}
