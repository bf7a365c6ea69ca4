// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"slices"
	"time"
)

// monitorPlan is what the engine needs of a monitor, worked out once.
type monitorPlan struct {
	name   string
	scale  float64
	gauge  bool
	sparse bool
	ring   int   // entries of its history
	tick   int64 // ns, the resolution of the history
	maxGap int64 // ns, the longest step that a mean may span
	items  []itemPlan
}

// itemPlan is one item. Its window is at the same index in its series. Equal
// items of several policies share one.
type itemPlan struct {
	name      string // the window as it is reported
	threshold float64
	limit     float64 // threshold and what rounding may add to a reading
	inverse   float64 // 1 / threshold
	releases  bool
	release   float64 // what is released is below, less what rounding may take
	guard     itemRef // whose test must hold too; none: noItem
	count     int     // 0: a mean
	gauge     bool
	sparse    bool
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

// below is strict likewise.
func (i *itemPlan) below(value float64) bool { return value < i.release }

// ratio orders items by how hot they are.
func (i *itemPlan) ratio(value float64) float64 { return value * i.inverse }

func inverse(threshold float64) float64 { return 1 / max(threshold, 1e-9) }

type policyPlan struct {
	name               string
	duration, cooldown time.Duration
	items              []itemRef
	releases           bool // an item has ReleaseBelow
	dryRun             bool
	baseline           Baseline
}

// itemRef finds an item by its monitor and its place there.
type itemRef struct{ monitor, window int }

var noItem = itemRef{-1, -1}

// planner compiles a valid configuration.
type planner struct {
	interval time.Duration
	tick     int64
	slack    int64
	monitors []monitorPlan
}

// plan returns the monitors, and the policies with the one of openings by hand
// behind them.
func plan(c Config) (monitors []monitorPlan, policies []policyPlan) {
	b := planner{
		interval: c.CollectionInterval,
		tick:     max(1, int64(c.CollectionInterval)/ticksPerInterval),
		// Tickers jitter: "within one interval" must not flip with it.
		slack: int64(c.CollectionInterval) / 4,
	}
	index := make(map[string]int)
	for _, m := range c.Monitors {
		index[m.Name] = len(b.monitors)
		scale := m.Scale
		if scale == 0 {
			scale = 1
		}
		b.monitors = append(b.monitors, monitorPlan{
			name: m.Name, scale: scale, gauge: m.Gauge, sparse: m.Sparse, tick: b.tick,
			ring:   ringSize(c.History, c.CollectionInterval),
			maxGap: 3*int64(c.CollectionInterval) + b.slack,
		})
	}
	for _, p := range c.Policies {
		pp := policyPlan{name: p.Name, duration: p.Duration, cooldown: p.Cooldown, dryRun: p.DryRun, baseline: p.Baseline}
		for _, i := range p.Conditions {
			n := index[i.Monitor]
			planned := b.item(n, i)
			if m := c.Monitors[n]; m.Guard != "" {
				planned.guard = b.guard(index[m.Guard], i.span(), m.GuardAtLeast)
			}
			pp.items = append(pp.items, b.place(n, i.span(), planned))
			pp.releases = pp.releases || planned.releases
		}
		policies = append(policies, pp)
	}
	return b.monitors, append(policies, policyPlan{name: Manual})
}

func (b *planner) item(monitor int, i Condition) itemPlan {
	m := &b.monitors[monitor]
	planned := itemPlan{
		name: i.Window(), threshold: i.Threshold,
		limit:   i.Threshold + 1e-6*i.Threshold + 1e-9*m.scale,
		inverse: inverse(i.Threshold),
		guard:   noItem,
		count:   i.Count, gauge: m.gauge, sparse: m.sparse,
		span:     int64(i.span()) / b.tick,
		near:     (int64(b.interval) + b.slack) / b.tick,
		slack:    b.slack / b.tick,
		enough:   int((i.span()*4 + b.interval*5 - 1) / (b.interval * 5)),
		tick:     b.tick,
		interval: int64(b.interval),
		fresh:    int64(b.interval) + b.slack,
	}
	if i.ReleaseBelow != nil {
		planned.releases = true
		planned.release = *i.ReleaseBelow - 1e-6**i.ReleaseBelow - 1e-9*m.scale
	}
	return planned
}

// guard plans the mean of a guard over a span, which is to be at least so much.
func (b *planner) guard(monitor int, span time.Duration, atLeast float64) itemRef {
	i := b.item(monitor, Condition{Threshold: atLeast, AverageOver: span})
	i.limit = atLeast - 1e-6*atLeast - 1e-9*b.monitors[monitor].scale
	return b.place(monitor, span, i)
}

// place gives an item a window, which equal ones share: many policies with the
// same test cost no more than one.
func (b *planner) place(monitor int, span time.Duration, i itemPlan) itemRef {
	m := &b.monitors[monitor]
	m.ring = max(m.ring, ringSize(span, b.interval))
	n := slices.Index(m.items, i)
	if n < 0 {
		n = len(m.items)
		m.items = append(m.items, i)
	}
	return itemRef{monitor, n}
}
