// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
)

func TestCaptureWindowIsOnTheClockOfItsArrival(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		clock       time.Time
		end         time.Time // by the wall clock
		start, want time.Duration
	}{
		"just ended":                       {now, now, -5 * time.Second, 0},
		"three seconds ago":                {now, now.Add(-3 * time.Second), -8 * time.Second, -3 * time.Second},
		"a clock that is a little ahead":   {now, now.Add(2 * time.Second), -3 * time.Second, 2 * time.Second},
		"taken before the clock went back": {now.Add(-time.Hour), now, -5 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := pprofile.NewProfile()
			p.SetTime(pcommon.NewTimestampFromTime(c.end.Add(-5 * time.Second)))
			p.SetDurationNano(uint64(5 * time.Second))
			start, end := captureWindow(p, c.clock)
			require.InDelta(t, c.start, start.Sub(c.clock), float64(time.Millisecond))
			require.InDelta(t, c.want, end.Sub(c.clock), float64(time.Millisecond))
		})
	}
}
