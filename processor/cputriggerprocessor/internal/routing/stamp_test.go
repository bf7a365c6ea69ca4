// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

func TestStampingAddsEachAttributeOnce(t *testing.T) {
	r := newRig(t, policy("cpu", 1))
	r.fire(containerA)
	p := inContainer(containerA)
	p.types = []*samples.Type{samples.OnCPU, offCPU}
	pd := batch(t, r.now.Add(time.Second), p, p, p)
	strings, attributes := pd.Dictionary().StringTable().Len(), pd.Dictionary().AttributeTable().Len()
	r.send(pd)
	out := r.sink.AllProfiles()[0]
	require.Len(t, decode(out), 6)
	require.Equal(t, strings+10, out.Dictionary().StringTable().Len(), "ten keys")
	require.Equal(t, attributes+10, out.Dictionary().AttributeTable().Len())
	conformancetest.CheckDictionary(t, out)
}

// TestWorkersOfAUnitBeginAtDifferentTimes checks that the profiles of a unit's workers
// have different start times, because the workers form one series. Otherwise the profiles
// would violate the rules that r.received checks.
func TestWorkersOfAUnitBeginAtDifferentTimes(t *testing.T) {
	r := newRig(t, policy("cpu", 1))
	r.fire(containerA)
	worker := inContainer(containerA)
	r.send(batch(t, r.now.Add(time.Second), worker, worker, worker))
	begins := map[pcommon.Timestamp]bool{}
	for _, p := range decode(r.received()) {
		begins[p.Time()] = true
	}
	require.Len(t, begins, 3)
}

// labelsByType returns the policy and the kind on the resource of each profile, by
// profile type.
func labelsByType(pd pprofile.Profiles) map[string]string {
	out := map[string]string{}
	for _, p := range decode(pd) {
		out[p.sampleType] = fmt.Sprint(p.resource["hotprofile.trigger.policy"], " ", p.resource["hotprofile.trigger.kind"])
	}
	return out
}

// TestKindIsOnTheResource checks that baseline, manual and hot profiles have different
// resources. Backends create one series per resource.
func TestKindIsOnTheResource(t *testing.T) {
	cool := policy("cpu", 1)
	cool.Baseline = trigger.Baseline{Every: 10 * time.Minute, Duration: 10 * time.Second}
	r := newRig(t, cool)
	r.watch(containerA)
	r.runUntil(containerA, 30*time.Minute, isOpen)
	r.send(batch(t, r.now.Add(time.Second), inContainer(containerA)))
	require.Equal(t, map[string]string{"samples": "cpu baseline"}, labelsByType(r.received()))
	r.run(time.Minute)
	r.fire(containerA)
	r.send(batch(t, r.now.Add(4*time.Second), inContainer(containerA)))
	require.Equal(t, map[string]string{"samples": "cpu hot"}, labelsByType(r.received()))
	_, _, err := r.units.OpenGate(identify.Identity{Name: service, Group: r.host.Groups[service]}, trigger.Alert{}, time.Minute, r.now)
	require.NoError(t, err)
	r.send(batch(t, r.now.Add(4*time.Second), inService()))
	require.Equal(t, map[string]string{"samples": "manual manual"}, labelsByType(r.received()))
}

// TestTheLabelNamesThePolicyThatFiredFirst covers two policies that fire at the same
// evaluation. The hottest policy comes first.
func TestTheLabelNamesThePolicyThatFiredFirst(t *testing.T) {
	r := newRig(t, policy("cpu", 1), policy("hotter", 0.1))
	r.fire(containerA)
	openings := map[string]*trigger.Opening{}
	for _, o := range r.openings(containerA) {
		openings[o.Policy] = o
	}
	require.Len(t, openings, 2)
	require.Equal(t, openings["cpu"].FiredAt, openings["hotter"].FiredAt, "of one evaluation")
	r.send(batch(t, r.now.Add(time.Second), inContainer(containerA)))
	got := decode(r.received())[0]
	require.Equal(t, "hotter", got.resource["hotprofile.trigger.policy"])
	require.Equal(t, "hotter,cpu", got.attributes["hotprofile.trigger.policy"])
	require.Equal(t, openings["hotter"].ID, got.attributes["hotprofile.trigger.id"])
}

// TestProfilesOfOneResourceWithDifferentLabelsGetAResourceEach checks that a resource is
// split if its profiles get different labels. The policy labels of each new resource must
// name only policies that admit the types of its profiles.
func TestProfilesOfOneResourceWithDifferentLabelsGetAResourceEach(t *testing.T) {
	for name, limits := range map[string]budget.Limits{"": {}, "within max_bytes_per_hour": {MaxBytesPerHour: 1 << 20}} {
		t.Run(name, func(t *testing.T) {
			r := newRigAt(t, epoch, trigger.Config{Policies: []trigger.Policy{policy("waiting", 1, "off_cpu"), policy("running", 0.1, "cpu")}, Budgets: limits})
			r.fire(containerA)
			a, b := inContainer(containerA), inContainer(containerA)
			a.types = []*samples.Type{samples.OnCPU, offCPU}
			b.types = []*samples.Type{offCPU, samples.OnCPU}
			b.attributes["service.name"] = "b"
			r.send(batch(t, r.now.Add(time.Second), a, b))
			out := r.sink.AllProfiles()[0]
			conformancetest.CheckDictionary(t, out)
			require.Equal(t, map[string]string{"samples": "running hot", "off_cpu": "waiting hot"}, labelsByType(out))
			perService := map[any]int{}
			for _, p := range decode(out) {
				require.Equal(t, p.resource["hotprofile.trigger.policy"], p.attributes["hotprofile.trigger.policy"])
				require.NotContains(t, p.resource, "process.linux.cgroup")
				perService[p.resource["service.name"]]++
			}
			require.Equal(t, map[any]int{"unknown_service:app": 2, "b": 2}, perService)
			require.Len(t, r.openings(containerA), 2)
			for _, o := range r.openings(containerA) {
				require.Equal(t, 2*6, o.Samples, "samples of the type of policy %s", o.Policy)
			}
		})
	}
}

func TestResourceAttributesAreLabelsToo(t *testing.T) {
	r := newRig(t, policy("cpu", 1))
	r.router.OnResource = []string{"hotprofile.trigger.monitor", "hotprofile.trigger.threshold", "hotprofile.trigger.phase"}
	r.fire(containerA)
	p := inContainer(containerA)
	p.attributes["hotprofile.trigger.id"] = "of another gate"
	r.send(batch(t, r.now.Add(time.Second), p))
	got := map[string]any{}
	for key, value := range decode(r.received())[0].resource {
		if strings.HasPrefix(key, "hotprofile.") {
			got[key] = value
		}
	}
	require.Equal(t, map[string]any{
		"hotprofile.trigger.policy": "cpu", "hotprofile.trigger.kind": "hot", "hotprofile.trigger.monitor": "cpu_usage",
		"hotprofile.trigger.threshold": "1", "hotprofile.trigger.phase": "both",
	}, got)
}
