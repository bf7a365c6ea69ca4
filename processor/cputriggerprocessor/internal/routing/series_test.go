// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// TestProfilesOfASeriesBeginAtDifferentTimes covers the workers of a unit, which form one
// series after process.pid has been removed.
func TestProfilesOfASeriesBeginAtDifferentTimes(t *testing.T) {
	out := pprofile.NewProfiles()
	out.Dictionary().StringTable().Append("", "samples", "wall")
	policy := "cpu"
	add := func(service string, typ int32) pprofile.Profile {
		rp := out.ResourceProfiles().AppendEmpty()
		if policy != "" {
			rp.Resource().Attributes().PutStr(attr.TriggerPolicy, policy)
		}
		rp.Resource().Attributes().PutStr("host.name", "node-1")
		rp.Resource().Attributes().PutStr("service.name", service)
		p := rp.ScopeProfiles().AppendEmpty().Profiles().AppendEmpty()
		p.SampleType().SetTypeStrindex(typ)
		p.SetTime(1000)
		p.SetDurationNano(50)
		return p
	}
	workers := []pprofile.Profile{add("shop", 1), add("shop", 1), add("shop", 1)}
	others := []pprofile.Profile{add("shop", 2), add("cart", 1)}
	policy = "" // unmatched profiles have no policy and are not changed
	others = append(others, add("shop", 1), add("shop", 1))
	var p starts
	list := p.separate(out, nil)
	seen := map[pcommon.Timestamp]bool{}
	for _, w := range workers {
		require.False(t, seen[w.Time()])
		seen[w.Time()] = true
		require.LessOrEqual(t, w.Time(), pcommon.Timestamp(1000))
		require.EqualValues(t, 1050, uint64(w.Time())+w.DurationNano(), "it ends when it did")
	}
	for _, o := range others {
		require.EqualValues(t, 1000, o.Time())
		require.EqualValues(t, 50, o.DurationNano())
	}
	require.Zero(t, testing.AllocsPerRun(10, func() { list = p.separate(out, list[:0]) }))

	// An exporter may merge a later batch with the first batch.
	out = pprofile.NewProfiles()
	out.Dictionary().StringTable().Append("", "wall", "samples") // in another order
	policy = "cpu"
	later := add("shop", 2)
	p.giveBack(p.separate(out, nil))
	got := later.Time()
	later.SetTime(1000)
	p.separate(out, nil)
	require.Equal(t, got, later.Time(), "a profile that was refused gets the same time again")
	require.False(t, seen[later.Time()])
	require.Less(t, later.Time(), pcommon.Timestamp(1000))

	for i := range 3 * maxStarts {
		p.take(uint64(i), 1)
	}
	require.LessOrEqual(t, len(p.used)+len(p.older), 2*maxStarts+2)
}

func TestProfilesWithoutATimeGetNone(t *testing.T) {
	out := pprofile.NewProfiles()
	for range 3 {
		rp := out.ResourceProfiles().AppendEmpty()
		rp.Resource().Attributes().PutStr(attr.TriggerPolicy, "cpu")
		rp.ScopeProfiles().AppendEmpty().Profiles().AppendEmpty()
	}
	var p starts
	p.separate(out, nil)
	for _, rp := range out.ResourceProfiles().All() {
		profile := rp.ScopeProfiles().At(0).Profiles().At(0)
		require.Zero(t, profile.Time())
		require.Zero(t, profile.DurationNano())
	}
}
