// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import "time"

// monitorPlan is what the engine needs of a monitor, worked out once.
type monitorPlan struct {
	name   string
	scale  float64
	gauge  bool
	ring   int   // entries of its history
	tick   int64 // ns, the resolution of the history
	maxGap int64 // ns, the longest step that a mean may span
	items  []itemPlan
}

// itemPlan is one item. Its window is at the same index in its series.
type itemPlan struct {
	name      string // the window as it is reported
	threshold float64
	limit     float64 // threshold and what rounding may add to a reading
	count     int     // 0: a mean
	gauge     bool
	span      int64 // ticks
	near      int64 // ticks that a reading may be off the start of the span
	slack     int64 // ticks that tickers may jitter
	enough    int   // readings that the mean of a gauge needs
	tick      int64 // ns
	interval  int64 // ns
	fresh     int64 // ns that the newest reading may be old
}

// above is strict: readings are kept with 7 digits, so what exceeds the
// threshold by less than that does not count.
func (i *itemPlan) above(value float64) bool { return value > i.limit }

// ratio orders firing items by how hot they are.
func (i *itemPlan) ratio(value float64) float64 { return value / max(i.threshold, 1e-9) }

type policyPlan struct {
	name               string
	duration, cooldown time.Duration
	items              []itemRef
}

// itemRef finds an item by its monitor and its place there.
type itemRef struct{ monitor, window int }

// plan compiles a valid configuration.
func plan(c Config) (monitors []monitorPlan, policies []policyPlan) {
	tick := max(1, int64(c.CollectionInterval)/ticksPerInterval)
	// Tickers jitter: "within one interval" must not flip with it.
	slack := int64(c.CollectionInterval) / 4

	index := make(map[string]int)
	for _, m := range c.Monitors {
		index[m.Name] = len(monitors)
		scale := m.Scale
		if scale == 0 {
			scale = 1
		}
		monitors = append(monitors, monitorPlan{
			name: m.Name, scale: scale, gauge: m.Gauge, tick: tick,
			ring:   ringSize(c.History, c.CollectionInterval),
			maxGap: 3*int64(c.CollectionInterval) + slack,
		})
	}
	for _, p := range c.Policies {
		pp := policyPlan{name: p.Name, duration: p.Duration, cooldown: p.Cooldown}
		for _, i := range p.Items {
			m := &monitors[index[i.Monitor]]
			m.ring = max(m.ring, ringSize(i.span(), c.CollectionInterval))
			pp.items = append(pp.items, itemRef{index[i.Monitor], len(m.items)})
			m.items = append(m.items, itemPlan{
				name: i.Window(), threshold: i.Threshold,
				limit: i.Threshold + 1e-6*i.Threshold + 1e-9*m.scale,
				count: i.Count, gauge: m.gauge,
				span:     int64(i.span()) / tick,
				near:     (int64(c.CollectionInterval) + slack) / tick,
				slack:    slack / tick,
				enough:   int((i.span()*4 + c.CollectionInterval*5 - 1) / (c.CollectionInterval * 5)),
				tick:     tick,
				interval: int64(c.CollectionInterval),
				fresh:    int64(c.CollectionInterval) + slack,
			})
		}
		policies = append(policies, pp)
	}
	return monitors, policies
}
