// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package otlpprofiles

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

func TestProfilesHaveTheNumberOfLostEvents(t *testing.T) {
	batch := samples.NewBatch(1 << 20)
	builder := NewBuilder(Options{})
	r := &samples.Resource{PID: 7, Attributes: []samples.Attribute{{Key: "process.pid", Value: int64(7)}}}
	at := &samples.Location{Type: samples.FrameKernel, Address: 1 << 63, Resolved: true}
	stack := &samples.Stack{Locations: []*samples.Location{at}}
	build := func() map[string]string {
		batch.Start, batch.End = 1000, 5000
		for _, typ := range []*samples.Type{samples.OnCPU, samples.OffCPU, samples.RunQueueScaled, samples.AllocObjects, samples.AllocSpace, samples.DotnetThreads} {
			require.True(t, batch.AddValue(samples.Key{Resource: r, Type: typ, Stack: stack, Period: 1}, 2000, 1))
		}
		lost := make(map[string]string)
		for p := range builder.Build(batch) {
			conformancetest.CheckFatal(t, p, conformancetest.Options{})
			table := p.Dictionary().StringTable()
			profiles := p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles()
			for i := range profiles.Len() {
				profile := profiles.At(i)
				name := table.At(int(profile.SampleType().TypeStrindex())) + " " + table.At(int(profile.PeriodType().TypeStrindex()))
				for _, a := range profile.AttributeIndices().AsRaw() {
					if attr := p.Dictionary().AttributeTable().At(int(a)); table.At(int(attr.KeyStrindex())) == "hotprofile.lost" {
						lost[name] = attr.Value().Str()
					}
				}
			}
		}
		batch.Reset()
		return lost
	}
	require.Empty(t, build())
	batch.AddLost(samples.OnCPU, 3)
	batch.AddLost(samples.OnCPU, 4)
	batch.AddLost(samples.AllocSpace, 9)
	require.Equal(t, map[string]string{"samples cpu": "7", "alloc_objects space": "9", "alloc_space space": "9"}, build())
	batch.AddLost(samples.OffCPU, 5)
	require.Equal(t, map[string]string{"off_cpu context_switches": "5", "runqueue context_switches": "5"}, build(), "the next window")
}
