// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package attributes

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/trigger"
)

// TestReasonsOfProfiles checks the attributes of profiles, and their order, for each kind of
// opening.
func TestReasonsOfProfiles(t *testing.T) {
	fired := time.Date(2026, 5, 28, 20, 26, 42, 500_000_000, time.FixedZone("east", 7200))
	const at = "2026-05-28T18:26:42.5Z"
	cause := trigger.Cause{Monitor: "cpu_usage", Key: "cpu_usage", Value: 1.23456, Threshold: 0.0006, Window: "5s average"}
	opening := func(policy string, change func(*trigger.Opening)) *trigger.Opening {
		o := &trigger.Opening{Cause: cause, ID: "id-" + policy, Unit: "0a1b", Policy: policy, FiredAt: fired}
		change(o)
		return o
	}
	hot := opening("cpu", func(*trigger.Opening) {})
	for name, c := range map[string]struct {
		openings []*trigger.Opening
		end      time.Duration // of the profile, after the trigger
		want     [][2]string
		labels   map[string]any
	}{
		"hot": {
			[]*trigger.Opening{hot, opening("memory", func(*trigger.Opening) {})},
			time.Second,
			[][2]string{
				{"policy", "cpu,memory"},
				{"id", "id-cpu"},
				{"unit", "0a1b"},
				{"monitor", "cpu_usage"},
				{"value", "1.235"},
				{"threshold", "0.001"},
				{"window", "5s average"},
				{"time", at},
				{"until", at},
				{"phase", "both"},
			},
			map[string]any{"policy": "cpu", "kind": "hot", "value": "1.235", "window": "5s average", "unit": "0a1b"},
		},
		"baseline without readings": {
			[]*trigger.Opening{opening("cpu", func(o *trigger.Opening) { o.Baseline, o.Cause = true, trigger.Cause{} })},
			time.Second,
			[][2]string{
				{"policy", "cpu"},
				{"id", "id-cpu"},
				{"unit", "0a1b"},
				{"value", "0"},
				{"threshold", "0"},
				{"time", at},
				{"until", at},
				{"phase", "baseline"},
			},
			map[string]any{"policy": "cpu", "kind": "baseline", "value": "0", "unit": "0a1b"},
		},
		"by hand": {
			[]*trigger.Opening{opening("manual", func(o *trigger.Opening) { o.Manual, o.Cause = true, trigger.Cause{Monitor: "manual"} }), hot},
			0,
			[][2]string{
				{"policy", "manual,cpu"},
				{"id", "id-manual"},
				{"unit", "0a1b"},
				{"monitor", "manual"},
				{"value", "0"},
				{"threshold", "0"},
				{"window", "manual"},
				{"time", at},
				{"until", at},
				{"phase", "before"},
			},
			map[string]any{"policy": "manual", "kind": "manual", "value": "0", "window": "manual", "unit": "0a1b"},
		},
		"by alert": {
			[]*trigger.Opening{opening("Latency", func(o *trigger.Opening) {
				o.Manual, o.Alert, o.Cause = true, "key", trigger.Cause{Monitor: "Latency"}
			})},
			time.Second,
			[][2]string{
				{"policy", "Latency"},
				{"id", "id-Latency"},
				{"unit", "0a1b"},
				{"monitor", "Latency"},
				{"value", "0"},
				{"threshold", "0"},
				{"window", "alert"},
				{"time", at},
				{"until", at},
				{"phase", "both"},
			},
			map[string]any{"policy": "Latency", "kind": "alert", "value": "0", "window": "alert", "unit": "0a1b"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			key := func(name string) string {
				if name == "unit" {
					return "hotprofile.unit"
				}
				return "hotprofile.trigger." + name
			}
			pd := pprofile.NewProfiles()
			dictionary.AppendZeroEntries(pd.Dictionary())
			p := pd.ResourceProfiles().AppendEmpty().ScopeProfiles().AppendEmpty().Profiles().AppendEmpty()
			s := Stamper{OnResource: []string{"hotprofile.unit", "hotprofile.trigger.value", "hotprofile.trigger.window"}}
			s.Begin(pd.Dictionary(), true)
			labels := s.Stamp(p, c.openings, fired.Add(c.end-2*time.Second), fired.Add(c.end))
			resource := pcommon.NewMap()
			resource.PutStr("hotprofile.trigger.id", "of another gate")
			s.Label(resource, labels)
			s.End()
			var want, got [][2]string
			for _, kv := range c.want {
				want = append(want, [2]string{key(kv[0]), kv[1]})
			}
			for k, v := range dictionary.NewReader(pd.Dictionary()).Attributes(p.AttributeIndices()) {
				got = append(got, [2]string{k, v.AsString()})
			}
			require.Equal(t, want, got)
			wantLabels := map[string]any{}
			for name, v := range c.labels {
				wantLabels[key(name)] = v
			}
			require.Equal(t, wantLabels, resource.AsRaw())
		})
	}
}
