// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package otlpprofiles

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

func TestWaitsAreSeparateProfilesWithTheirScaling(t *testing.T) {
	batch := samples.NewBatch(1 << 20)
	batch.Start, batch.End = 1000, 5000
	r := &samples.Resource{PID: 7, Attributes: []samples.Attribute{{Key: "process.pid", Value: int64(7)}}}
	at := &samples.Location{Type: samples.FrameKernel, Address: 1 << 63, Resolved: true}
	stack := &samples.Stack{Locations: []*samples.Location{at}}
	want := map[string]int64{}
	for i, typ := range []*samples.Type{samples.OffCPU, samples.RunQueue, samples.OffCPUScaled, samples.RunQueueScaled} {
		period := int64(1)
		if typ.Scaled != "" {
			period = 7
		}
		value := int64(100 + i)
		require.True(t, batch.AddValue(samples.Key{Resource: r, Type: typ, Stack: stack, Period: period}, 2000+int64(i), value))
		want[typ.Name+" "+typ.Scaled] = value
	}
	got := map[string]int64{}
	for p := range NewBuilder(Options{}).Build(batch) {
		conformancetest.CheckFatal(t, p, conformancetest.Options{})
		table := p.Dictionary().StringTable()
		profiles := p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles()
		for i := range profiles.Len() {
			profile := profiles.At(i)
			how := ""
			for _, a := range profile.AttributeIndices().AsRaw() {
				attr := p.Dictionary().AttributeTable().At(int(a))
				require.Equal(t, "hotprofile.scaled", table.At(int(attr.KeyStrindex())))
				how = attr.Value().Str()
			}
			require.Equal(t, how != "", profile.Period() == 7)
			require.Equal(t, 1, profile.Samples().Len())
			got[table.At(int(profile.SampleType().TypeStrindex()))+" "+how] = profile.Samples().At(0).Values().At(0)
		}
	}
	require.Equal(t, want, got)
}
