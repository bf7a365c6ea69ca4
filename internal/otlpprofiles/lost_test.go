// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package otlpprofiles

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

func TestProfilesHaveTheNumberOfLostEvents(t *testing.T) {
	batch, _, build := profilesWith(t, "hotprofile.lost")
	require.Empty(t, build())
	batch.AddLost(samples.OnCPU, 3)
	batch.AddLost(samples.OnCPU, 4)
	batch.AddLost(samples.AllocSpace, 9)
	require.Equal(t, map[string]string{"samples cpu": "7", "alloc_objects space": "9", "alloc_space space": "9"}, build())
	batch.AddLost(samples.OffCPU, 5)
	require.Equal(t, map[string]string{"off_cpu context_switches": "5", "runqueue context_switches": "5"}, build(), "the next window")
}

// TestOneProfileHasTheCPUTimeOfItsProcess covers a process with several profiles in one
// window. Such a process has several profiles because the frequency has changed.
func TestOneProfileHasTheCPUTimeOfItsProcess(t *testing.T) {
	batch, process, build := profilesWith(t, "hotprofile.cpu.time")
	require.Empty(t, build())
	batch.Charge(process, 5*time.Second)
	require.Equal(t, map[string]string{"samples cpu": "5000000000"}, build())
	require.Empty(t, build(), "the next window")
}

// profilesWith returns a batch, a process, and a function that builds profiles of each
// type. The function returns the values of an attribute, by profile type.
func profilesWith(t *testing.T, key string) (*samples.Batch, *samples.Resource, func() map[string]string) {
	batch := samples.NewBatch(1 << 20)
	builder := NewBuilder(Options{})
	r := &samples.Resource{PID: 7, Attributes: []samples.Attribute{{Key: "process.pid", Value: int64(7)}}}
	at := &samples.Location{Type: samples.FrameKernel, Address: 1 << 63, Resolved: true}
	stack := &samples.Stack{Locations: []*samples.Location{at}}
	return batch, r, func() map[string]string {
		batch.Start, batch.End = 1000, 5000
		for _, typ := range []*samples.Type{samples.OnCPU, samples.OffCPU, samples.RunQueueScaled, samples.AllocObjects, samples.AllocSpace, samples.DotnetThreads} {
			require.True(t, batch.AddValue(samples.Key{Resource: r, Type: typ, Stack: stack, Period: 1}, 2000, 1))
		}
		require.True(t, batch.Add(samples.Key{Resource: r, Type: samples.OnCPU, Stack: stack, Period: 2}, 3000))
		found := make(map[string]string)
		for p := range builder.Build(batch) {
			conformancetest.CheckFatal(t, p, conformancetest.Options{})
			table := p.Dictionary().StringTable()
			profiles := p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles()
			for i := range profiles.Len() {
				profile := profiles.At(i)
				name := table.At(int(profile.SampleType().TypeStrindex())) + " " + table.At(int(profile.PeriodType().TypeStrindex()))
				for _, a := range profile.AttributeIndices().AsRaw() {
					if attr := p.Dictionary().AttributeTable().At(int(a)); table.At(int(attr.KeyStrindex())) == key {
						require.True(t, key == "hotprofile.lost" || found[name] == "", "twice")
						found[name] = attr.Value().Str()
					}
				}
			}
		}
		batch.Reset()
		return found
	}
}
