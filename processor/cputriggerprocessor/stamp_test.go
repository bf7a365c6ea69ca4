// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

func TestStampingAddsEachAttributeOnce(t *testing.T) {
	r := newRig(t, "")
	r.fire(containerA)
	p := inContainer(containerA)
	p.types = []*samples.Type{samples.OnCPU, offCPU}
	pd := batch(t, r.now.Add(time.Second), p, p, p)
	strings, attributes := pd.Dictionary().StringTable().Len(), pd.Dictionary().AttributeTable().Len()
	require.NoError(t, r.send(pd))
	out := r.sink.AllProfiles()[0]
	require.Len(t, allProfiles(out), 6)
	require.Equal(t, strings+10, out.Dictionary().StringTable().Len(), "ten keys")
	require.Equal(t, attributes+10, out.Dictionary().AttributeTable().Len())
	conformancetest.CheckDictionary(t, out)
}

// TestWorkersOfAUnitBeginAtDifferentTimes checks that the profiles of a unit's workers
// have different start times, because the workers form one series. Otherwise the profiles
// would violate the rules that r.received checks.
func TestWorkersOfAUnitBeginAtDifferentTimes(t *testing.T) {
	r := newRig(t, "")
	r.fire(containerA)
	worker := inContainer(containerA)
	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), worker, worker, worker)))
	begins := map[pcommon.Timestamp]bool{}
	for _, p := range allProfiles(r.received()) {
		begins[p.Time()] = true
	}
	require.Len(t, begins, 3)
}

// labelsByType returns the policy and the kind on the resource of each profile, by
// profile type.
func labelsByType(pd pprofile.Profiles) map[string]string {
	out := map[string]string{}
	for _, p := range allProfiles(pd) {
		out[p.sampleType] = fmt.Sprint(p.resource["hotprofile.trigger.policy"], " ", p.resource["hotprofile.trigger.kind"])
	}
	return out
}

// TestKindIsOnTheResource checks that baseline, manual and hot profiles have different
// resources. Backends create one series per resource.
func TestKindIsOnTheResource(t *testing.T) {
	r := newRig(t, onePolicy("cooldown: 0s, baseline: {every: 10m, duration: 10s}", ""))
	r.watch(containerA)
	r.runUntil("gate opened", 30*time.Minute)
	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), inContainer(containerA))))
	require.Equal(t, map[string]string{"samples": "cpu baseline"}, labelsByType(r.received()))
	r.fire(containerA)
	r.runUntil("gate closed", time.Minute)
	r.runUntil("gate opened", time.Minute)
	require.NoError(t, r.send(batch(t, r.now.Add(4*time.Second), inContainer(containerA))))
	require.Equal(t, map[string]string{"samples": "cpu hot"}, labelsByType(r.received()))
	_, err := r.p.openByHand(t.Context(), service, time.Minute)
	require.NoError(t, err)
	require.NoError(t, r.send(batch(t, r.now.Add(4*time.Second), inService())))
	require.Equal(t, map[string]string{"samples": "manual manual"}, labelsByType(r.received()))
}

const twoPolicies = `{pre_trigger: 0s, min_age: 0s, policies: [
  {name: cpu, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]%s},
  {name: throttled, any_of: [{monitor: cpu_utilization, threshold: 10, average_over: 5s}]%s}]%s}`

// TestTheLabelNamesThePolicyThatFiredFirst covers two policies that fire at the same
// evaluation. The hottest policy comes first, in the log and on the resource.
func TestTheLabelNamesThePolicyThatFiredFirst(t *testing.T) {
	r := newRig(t, fmt.Sprintf(twoPolicies, "", "", ""))
	r.fire(containerA)
	opened := r.log("gate opened")
	require.Len(t, opened, 2)
	require.Equal(t, "throttled", opened[0].ContextMap()["policy"])
	require.Equal(t, opened[0].ContextMap()["until"], opened[1].ContextMap()["until"], "of one evaluation")
	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), inContainer(containerA))))
	got := allProfiles(r.received())[0]
	require.Equal(t, "throttled", got.resource["hotprofile.trigger.policy"])
	require.Equal(t, "throttled,cpu", got.attributes["hotprofile.trigger.policy"])
	require.Equal(t, opened[0].ContextMap()["trigger_id"], got.attributes["hotprofile.trigger.id"])
}

// TestProfilesOfOneResourceWithDifferentLabelsGetAResourceEach checks that a resource is
// split if its profiles get different labels. The policy labels of each new resource must
// name only policies that admit the types of its profiles.
func TestProfilesOfOneResourceWithDifferentLabelsGetAResourceEach(t *testing.T) {
	for name, budget := range map[string]string{"": "", "within max_bytes_per_hour": ", budgets: {max_bytes_per_hour: 1MiB}"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, fmt.Sprintf(twoPolicies, ", profile_types: [off_cpu]", ", profile_types: [cpu]", budget))
			r.fire(containerA)
			a, b := inContainer(containerA), inContainer(containerA)
			a.types = []*samples.Type{samples.OnCPU, offCPU}
			b.types = []*samples.Type{offCPU, samples.OnCPU}
			b.attributes["service.name"] = "b"
			require.NoError(t, r.send(batch(t, r.now.Add(time.Second), a, b)))
			out := r.sink.AllProfiles()[0]
			conformancetest.CheckDictionary(t, out)
			require.Equal(t, map[string]string{"samples": "throttled hot", "off_cpu": "cpu hot"}, labelsByType(out))
			perService := map[any]int{}
			for _, p := range allProfiles(out) {
				require.Equal(t, p.resource["hotprofile.trigger.policy"], p.attributes["hotprofile.trigger.policy"])
				require.NotContains(t, p.resource, "process.linux.cgroup")
				perService[p.resource["service.name"]]++
			}
			require.Equal(t, map[any]int{"unknown_service:app": 2, "b": 2}, perService)
			r.runUntil("gate closed", time.Minute)
			closed := r.log("gate closed")
			require.Len(t, closed, 2)
			for _, line := range closed {
				require.EqualValues(t, 2*6, line.ContextMap()["samples"], "of each policy those of its type")
			}
		})
	}
}

func TestResourceAttributesAreLabelsToo(t *testing.T) {
	r := newRig(t, onePolicy("", "resource_attributes: [hotprofile.trigger.monitor, hotprofile.trigger.threshold, hotprofile.trigger.phase]"))
	r.fire(containerA)
	p := inContainer(containerA)
	p.attributes["hotprofile.trigger.id"] = "of another gate"
	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), p)))
	got := allProfiles(r.received())[0]
	want := map[string]any{
		"hotprofile.trigger.policy": "cpu", "hotprofile.trigger.kind": "hot", "hotprofile.trigger.monitor": "cpu_usage",
		"hotprofile.trigger.threshold": "1", "hotprofile.trigger.phase": "both",
	}
	for k, v := range got.resource {
		if strings.HasPrefix(k, "hotprofile.") {
			require.Equal(t, want[k], v, k)
			delete(want, k)
		}
	}
	require.Empty(t, want)
}
