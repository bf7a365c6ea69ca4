// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package requests

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
)

func use(opening string, n byte, ms float64, waiting string, took float64) Use {
	return Use{Opening: opening, Ended: Ended{Span: Span{Trace: pcommon.TraceID{n}, ID: pcommon.SpanID{n}}, Time: ms}, Waiting: waiting, Took: took}
}

// TestTheSlowestRequestsOfAnOpening checks that the ten slowest requests are kept, with
// the time of all their samples. The order of the samples must not matter.
func TestTheSlowestRequestsOfAnOpening(t *testing.T) {
	in := newRig(t).in
	for range 3 {
		for _, n := range []byte{5, 12, 1, 9, 3, 11, 2, 10, 4, 8, 7, 6} {
			in.Spend([]Use{use("a", n, 100*float64(n), "", 10), use("a", n, 100*float64(n), "disk", 2)})
		}
	}
	in.Spend([]Use{use("b", 1, 5, "lock", 1)})
	slow := in.TakeSlowest("a")
	require.Len(t, slow, 10)
	for i, s := range slow {
		require.InDelta(t, 100*float64(12-i), s.Time, 0)
		require.InDelta(t, 30, s.CPU, 0)
		require.Equal(t, map[string]float64{"disk": 6}, s.Waits)
	}
	require.Empty(t, in.TakeSlowest("a"), "they were taken")
	require.Equal(t, map[string]float64{"lock": 1}, in.TakeSlowest("b")[0].Waits)
}

// TestSlowRequestsAreBounded checks the limits on the number of openings and on the number
// of kinds of waits. The limits are needed because both numbers depend on other programs.
func TestSlowRequestsAreBounded(t *testing.T) {
	in := newRig(t).in
	for i := range maxSlowOpenings + 1 {
		in.Spend([]Use{use(fmt.Sprint(i), 1, 5, "", 1)})
	}
	require.Empty(t, in.TakeSlowest("0"), "the oldest opening gave way")
	for i := range 100 {
		in.Spend([]Use{use("1", 1, 5, fmt.Sprint(i), 1)})
	}
	require.Len(t, in.TakeSlowest("1")[0].Waits, maxKinds)
}
