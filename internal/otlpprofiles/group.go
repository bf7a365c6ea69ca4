// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package otlpprofiles

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// profileGroup contains the samples of one profile. If the profile exceeds a limit, it
// is split into several profiles.
type profileGroup struct {
	profileKey
	resourceOrder int
	samples       []int
	// [start, end) is the captured window. Every exported timestamp is in this window.
	start, end int64
	attributes []attribute // of the profile
}

type attribute struct {
	key   string
	value dictionary.Value
}

// profileKey identifies a profile within a batch.
type profileKey struct {
	resource *samples.Resource
	typ      *samples.Type
	period   int64
	window   *samples.CaptureWindow
	// from and until are the time range in which the samples were captured. They are 0 if
	// the type is Sent or window is not nil.
	from, until int64
}

// grouped groups samples into profiles by resource. Within a resource, it groups samples
// by type, period and window. The groups are in the order of first use.
func grouped(batch *samples.Batch, all []samples.Sample) []*profileGroup {
	var groups []*profileGroup
	index := make(map[profileKey]*profileGroup)
	resources := make(map[*samples.Resource]int)
	for i := range all {
		k := profileKey{resource: all[i].Resource, typ: all[i].Type, period: all[i].Period, window: all[i].Window}
		if !k.typ.Sent && k.window == nil {
			k.from, k.until = batch.CapturedIn(all[i].Capture)
		}
		g := index[k]
		if g == nil {
			order, seen := resources[k.resource]
			if !seen {
				order = len(resources)
				resources[k.resource] = order
			}
			g = newGroup(k, batch)
			g.resourceOrder = order
			index[k] = g
			groups = append(groups, g)
		}
		g.samples = append(g.samples, i)
		if k.typ.Sent && k.window == nil {
			g.widen(all[i].Times)
		}
	}
	slices.SortStableFunc(groups, func(a, b *profileGroup) int { return cmp.Compare(a.resourceOrder, b.resourceOrder) })
	return groups
}

// newGroup returns a group with its window. If the type is Sent and no window is given,
// the window is empty until widen is called.
func newGroup(k profileKey, batch *samples.Batch) *profileGroup {
	g := &profileGroup{profileKey: k, start: k.from, end: k.until}
	lost, charged := int64(0), int64(0)
	switch {
	case k.window != nil:
		g.start, g.end = k.window.Start, max(k.window.End, k.window.Start+1)
	case k.typ.Sent:
		g.start, g.end = math.MaxInt64, 0
	default:
		lost = batch.Lost(k.typ) // for all resources together
		if k.typ == samples.OnCPU && k.from == batch.Start {
			charged = batch.Charged(k.resource)
		}
	}
	g.attributes = profileAttributes(k.typ, lost, charged)
	return g
}

// profileAttributes returns the attributes of a profile. All values are strings, because
// Parca drops all other values.
func profileAttributes(t *samples.Type, lost, charged int64) (all []attribute) {
	add := func(has bool, key, value string) {
		if has {
			all = append(all, attribute{key, dictionary.Str(value)})
		}
	}
	add(t.Unscaled, attr.Unscaled, yes)
	add(t.Scaled != "", attr.Scaled, t.Scaled)
	add(t.Spread, attr.Spread, yes)
	add(lost > 0, attr.Lost, strconv.FormatInt(lost, 10))
	add(charged > 0, attr.CPUTime, strconv.FormatInt(charged, 10))
	return all
}

// widen widens the window to include the times of events. If a sample represents a period,
// that period ends at the time of the sample. The windows of samples at a steady rate
// therefore follow each other without a gap.
func (g *profileGroup) widen(times []int64) {
	before := int64(0)
	if g.typ.PeriodUnit == "nanoseconds" {
		before = g.period - 1
	}
	for _, t := range times {
		g.start = min(g.start, max(t-before, min(t, 1)))
		g.end = max(g.end, t+1)
	}
}

// within returns t if t is inside the window. Otherwise, it returns the
// nearest edge of the window.
func (g *profileGroup) within(t int64) uint64 { return uint64(min(max(t, g.start), g.end-1)) }
