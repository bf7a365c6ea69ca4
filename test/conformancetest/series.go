// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package conformancetest

import (
	"fmt"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
)

// Series computes the series that Pyroscope creates from profiles, and adds them to a
// set. There is one series for each type and set of labels. The labels are the attributes
// of resource, scope and sample whose values are strings, as in Pyroscope's convert.go
// and ingest_handler.go. All indices must be valid.
func Series(to map[string]struct{}, p pprofile.Profiles) {
	d := p.Dictionary()
	str := func(i int32) string { return d.StringTable().At(int(i)) }
	for _, rp := range p.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			around := labelsOf(nil, rp.Resource().Attributes())
			around = labelsOf(around, sp.Scope().Attributes())
			for _, profile := range sp.Profiles().All() {
				typ := fmt.Sprintf("%s/%s by %s/%s", str(profile.SampleType().TypeStrindex()), str(profile.SampleType().UnitStrindex()),
					str(profile.PeriodType().TypeStrindex()), str(profile.PeriodType().UnitStrindex()))
				for _, s := range profile.Samples().All() {
					labels := slices.Clone(around)
					for _, i := range s.AttributeIndices().All() {
						a := d.AttributeTable().At(int(i))
						labels = labelOf(labels, str(a.KeyStrindex()), a.Value())
					}
					slices.Sort(labels)
					to[typ+" "+strings.Join(labels, " ")] = struct{}{}
				}
			}
		}
	}
}

func labelsOf(labels []string, attributes pcommon.Map) []string {
	for k, v := range attributes.All() {
		labels = labelOf(labels, k, v)
	}
	return labels
}

func labelOf(labels []string, key string, v pcommon.Value) []string {
	if v.Type() != pcommon.ValueTypeStr || v.Str() == "" {
		return labels
	}
	return append(labels, fmt.Sprintf("%s=%q", key, v.Str()))
}
