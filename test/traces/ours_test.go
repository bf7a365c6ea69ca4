// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"fmt"
	"time"

	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/window"
)

// ours is a configuration of the trigger.
type ours struct {
	items    []trigger.Condition // one policy for each condition
	evaluate int                 // in seconds
}

func utilization(threshold float64, over int) trigger.Condition {
	return trigger.Condition{Monitor: monitor.CPUUtilization, Test: window.Test{Threshold: threshold, AverageOver: seconds(over)}}
}

func throttling(threshold float64, over int) trigger.Condition {
	return trigger.Condition{Monitor: monitor.CPUThrottling, Test: window.Test{Threshold: threshold, AverageOver: seconds(over)}}
}

func busiestThread(threshold float64, over int) trigger.Condition {
	return trigger.Condition{Monitor: monitor.CPUBusiestThread, Test: window.Test{Threshold: threshold, AverageOver: seconds(over)}}
}

func (o ours) name() string {
	name := ""
	for i, item := range o.items {
		if i > 0 {
			name += "; "
		}
		what := map[string]string{
			monitor.CPUUtilization: "utilization", monitor.CPUThrottling: "throttling", monitor.CPUBusiestThread: "busiest thread",
		}[item.Monitor]
		name += fmt.Sprintf("%s %g %%, %s", what, item.Threshold, item.String())
	}
	if o.evaluate != 5 {
		name += fmt.Sprintf("; evaluated every %d s", o.evaluate)
	}
	return name
}

func (o ours) algorithm() algorithm { return algorithm{o.name(), o.play} }

func (o ours) engine() *trigger.Engine {
	c := trigger.Config{CollectionInterval: time.Second, PreTrigger: 10 * time.Second, MinAge: time.Minute}
	for _, name := range []string{monitor.CPUUtilization, monitor.CPUThrottling, monitor.CPUBusiestThread} {
		k, _ := monitor.KindOf(name)
		c.Monitors = append(c.Monitors, trigger.Monitor{Name: k.Name, Kind: window.Kind{Scale: k.Scale, Gauge: k.Gauge, Sparse: k.Sparse}})
	}
	for i, item := range o.items {
		c.Policies = append(c.Policies, trigger.Policy{
			Name: fmt.Sprint("policy", i), Conditions: []trigger.Condition{item},
			Duration: seconds(gateOpen), Cooldown: seconds(gateRest),
		})
	}
	e, err := trigger.New(c)
	if err != nil {
		panic(err) // a parameter set in this file is invalid
	}
	return e
}

// play runs the engine in the same way as the processor. If several
// policies fire, the first policy opens the gate. Further firings are
// ignored until the next opening is possible.
func (o ours) play(tr *trace) (opened []int) {
	e, start, next := o.engine(), time.Unix(1_700_000_000, 0), 0
	var u *trigger.Decision
	var r readings
	for i, now := range tr.seconds {
		t := start.Add(seconds(i))
		if now.down {
			if u != nil {
				e.Remove(tr.Name, t)
				u = nil
			}
			continue
		}
		if u == nil {
			u, r = e.Decision(tr.Name), readings{}
			u.SetStarted(t)
			if i == 0 {
				u.SetStarted(start.Add(-tr.Age))
			}
		}
		if now.row != nil {
			r.observe(u, start, now.row, tr.Threads)
		}
		if (i+tr.phase)%o.evaluate != 0 {
			continue
		}
		// The readings of this second are a little late.
		for _, tn := range e.Evaluate(t.Add(400 * time.Millisecond)) {
			if tn.Reason != trigger.Fired {
				continue
			}
			tn.Opening.Accepted(1, 1)
			if i >= next {
				opened = append(opened, i)
				next = i + gateOpen + gateRest
			}
		}
	}
	return opened
}

// readings computes the monitors' readings from rows. used and den are the CPU seconds and
// the core seconds since the first row. thread is the CPU time of the busiest thread in
// seconds. threadIn is the time, in seconds, for which the monitor read the threads.
type readings struct {
	last             *Row
	used, den        float64
	thread, threadIn float64
}

// observe passes a row to the decision. It assumes that all threads have the same load.
func (r *readings) observe(u *trigger.Decision, start time.Time, row *Row, threads int) {
	at := start.Add(time.Duration(row.At * float64(time.Second)))
	if r.last != nil {
		used, span := row.CPU-r.last.CPU, row.At-r.last.At
		r.used += used
		r.den += span * row.Capacity
		if used >= span/2 { // otherwise, the monitor does not read the threads
			r.thread += min(used/float64(threads), span)
			r.threadIn += span
			u.Observe(monitor.CPUBusiestThread, trigger.Reading{Time: at, Num: r.thread, Den: r.threadIn})
		}
	}
	r.last = row
	u.Observe(monitor.CPUUtilization, trigger.Reading{Time: at, Num: r.used, Den: r.den})
	u.Observe(monitor.CPUThrottling, trigger.Reading{Time: at, Num: float64(row.Throttled), Den: float64(row.Periods)})
}

// These are the defaults of the processor.
var (
	oursDefault     = ours{[]trigger.Condition{utilization(80, 30)}, 5}
	oursBothDefault = ours{[]trigger.Condition{utilization(80, 30), throttling(25, 30)}, 5}
	oursAllDefault  = ours{[]trigger.Condition{utilization(80, 30), throttling(25, 30), busiestThread(90, 30)}, 5}
)

// oursSets returns the parameter sets with one policy.
func oursSets() (sets []ours) {
	for _, evaluate := range []int{5, 1} {
		for _, threshold := range []float64{80, 60, 70, 90} {
			for _, over := range []int{30, 5, 10, 15, 20, 45, 60} {
				sets = append(sets, ours{[]trigger.Condition{utilization(threshold, over)}, evaluate})
			}
			for _, period := range []int{5, 10, 15, 20} {
				for _, share := range []float64{0.6, 0.8, 1} {
					item := trigger.Condition{Monitor: monitor.CPUUtilization, Test: window.Test{Threshold: threshold, Period: seconds(period), Count: int(share*float64(period) + 0.5)}}
					sets = append(sets, ours{[]trigger.Condition{item}, evaluate})
				}
			}
		}
	}
	return sets
}

// withThrottling returns copies of a parameter set with a second policy. There is one
// copy for each combination of the second policy's parameters that is tried.
func withThrottling(best ours) (sets []ours) {
	for _, threshold := range []float64{25, 10, 40, 60} {
		for _, over := range []int{30, 10, 60} {
			sets = append(sets, ours{append(best.items[:1:1], throttling(threshold, over)), best.evaluate})
		}
	}
	return sets
}
