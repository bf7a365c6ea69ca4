// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package otlpprofiles

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

// TestProfilesClaimTheTimeInWhichTheyWereCaptured checks the time range of profiles. The
// range is the part of the batch's window in which the target was sampled with the
// profile's period.
func TestProfilesClaimTheTimeInWhichTheyWereCaptured(t *testing.T) {
	const offset = 1_000_000
	ended := func(from, until int64) *samples.Capture {
		c := &samples.Capture{From: from}
		c.End(until)
		c.End(until + 1)
		return c
	}
	stack := &samples.Stack{Locations: []*samples.Location{{Type: samples.FrameKernel, Address: 1 << 63, Resolved: true}}}
	r := &samples.Resource{PID: 7, Attributes: []samples.Attribute{{Key: "process.pid", Value: int64(7)}}}
	type event struct {
		period, time int64
		capture      *samples.Capture
	}
	type window struct{ period, start, end int64 }
	for name, test := range map[string]struct {
		events []event
		want   []window
	}{
		"always":                {[]event{{1, 1500, &samples.Capture{From: 10}}, {1, 4000, nil}}, []window{{1, 1000, 5000}}},
		"attached in it":        {[]event{{1, 4000, &samples.Capture{From: 3000}}}, []window{{1, 3000, 5000}}},
		"detached in it":        {[]event{{1, 1500, ended(10, 2000)}}, []window{{1, 1000, 2000}}},
		"both":                  {[]event{{1, 1500, ended(1200, 2000)}}, []window{{1, 1200, 2000}}},
		"the period changed":    {[]event{{1, 1500, ended(10, 3000)}, {2, 4000, &samples.Capture{From: 3000}}}, []window{{1, 1000, 3000}, {2, 3000, 5000}}},
		"detached before it":    {[]event{{1, 1000, ended(10, 900)}}, []window{{1, 1000, 5000}}},
		"attached when it ends": {[]event{{1, 4999, &samples.Capture{From: 5000}}}, []window{{1, 1000, 5000}}},
		"seen by two":           {[]event{{1, 1500, ended(10, 3000)}, {1, 2000, ended(0, 3000)}}, []window{{1, 1000, 3000}}},
	} {
		t.Run(name, func(t *testing.T) {
			batch := samples.NewBatch(1 << 20)
			batch.Start, batch.End, batch.Offset = 1000+offset, 5000+offset, offset
			for _, e := range test.events {
				k := samples.Key{Resource: r, Type: samples.OnCPU, Stack: stack, Period: e.period, Capture: e.capture}
				require.True(t, batch.Add(k, e.time+offset))
			}
			var got []window
			for p := range NewBuilder(Options{}).Build(batch) {
				conformancetest.CheckFatal(t, p, conformancetest.Options{})
				profiles := p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles()
				for i := range profiles.Len() {
					profile := profiles.At(i)
					start := int64(profile.Time()) - offset
					got = append(got, window{profile.Period(), start, start + int64(profile.DurationNano())})
				}
			}
			require.Equal(t, test.want, got)
		})
	}
}
