// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"

	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/internal/trigger/window"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
)

// events is the number of samples in each capture of a rig.
const events = 6

// rig is a recorder with a decision core, a fake clock and fake readings. Its policy opens
// the gate of a unit for 20 seconds after the unit has used more than one CPU for five
// seconds.
type rig struct {
	*Recorder
	engine      *trigger.Engine
	telemetry   *componenttest.Telemetry
	began, now  time.Time
	units       []*trigger.Decision
	cores, used map[*trigger.Decision]float64
	counts      counters.Samples // of put
}

// newRig returns a rig with n units. memory limits the recorder, and also each unit.
func newRig(t *testing.T, n, memory int) *rig {
	t.Helper()
	began := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	r := &rig{telemetry: componenttest.NewTelemetry(), began: began, now: began, cores: map[*trigger.Decision]float64{}, used: map[*trigger.Decision]float64{}}
	t.Cleanup(func() { require.NoError(t, r.telemetry.Shutdown(context.Background())) })
	metrics, err := counters.New(r.telemetry.NewTelemetrySettings())
	require.NoError(t, err)
	const preTrigger = 10 * time.Second
	r.engine, err = trigger.New(trigger.Config{
		CollectionInterval: time.Second, PreTrigger: preTrigger, Monitors: []trigger.Monitor{{Name: "cpu"}},
		Policies: []trigger.Policy{{
			Name: "cpu", Duration: 20 * time.Second,
			Conditions: []trigger.Condition{{Monitor: "cpu", Test: window.Test{Threshold: 1, AverageOver: 5 * time.Second}}},
		}},
	})
	require.NoError(t, err)
	for i := range n {
		r.units = append(r.units, r.engine.Decision(fmt.Sprintf("%04d", i)))
	}
	r.Recorder = New(Config{Lock: new(sync.Mutex), PreTrigger: preTrigger, PerUnit: memory, Memory: memory}, metrics, began)
	return r
}

// run advances the clock by five seconds. It takes readings every second, and then evaluates
// the policy.
func (r *rig) run() {
	for range 5 {
		r.now = r.now.Add(time.Second)
		for _, u := range r.units {
			r.used[u] += r.cores[u]
			u.Observe("cpu", trigger.Reading{Time: r.now, Num: r.used[u], Den: r.now.Sub(r.began).Seconds()})
		}
	}
	r.engine.Evaluate(r.now)
	r.Sweep(r.now)
}

// put records a capture of the last five seconds with the given size in bytes. Its data is
// different from all data that was recorded at another time.
func (r *rig) put(u *trigger.Decision, size int) {
	data := append([]byte(nil), make([]byte, size)...) // the capacity is the size in memory, as in Pack
	copy(data, r.now.Format(time.RFC3339Nano))
	r.Put([]Capture{{Unit: u, Start: r.now.Add(-5 * time.Second), End: r.now, Samples: events, Data: data}}, &r.counts)
}

// fire opens the gates of all units. The recorder then holds two due records of each unit. The
// second record was put when the gate was already open.
func (r *rig) fire(t *testing.T) {
	t.Helper()
	for range 2 {
		r.run()
		for _, u := range r.units {
			r.put(u, 100)
			r.cores[u] = 2
		}
	}
	require.Equal(t, len(r.units), r.engine.ActiveOpenings())
	samples, _ := r.Held()
	require.EqualValues(t, 2*events*len(r.units), samples)
}
