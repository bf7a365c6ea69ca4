// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
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

// BenchmarkSweep measures the cost that the records add to an evaluation of 10,000 units.
func BenchmarkSweep(b *testing.B) {
	now := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	engine, err := trigger.New(trigger.Config{
		CollectionInterval: time.Second,
		Monitors:           []trigger.Monitor{{Name: "cpu", Kind: window.Kind{Scale: 100}}},
		Policies:           []trigger.Policy{{Name: "cpu", Duration: time.Second, Conditions: []trigger.Condition{{Monitor: "cpu", Test: window.Test{Threshold: 1, AverageOver: 5 * time.Second}}}}},
	})
	require.NoError(b, err)
	metrics, err := counters.New(componenttest.NewNopTelemetrySettings())
	require.NoError(b, err)
	r := New(Config{Lock: new(sync.Mutex), PreTrigger: 10 * time.Second, PerUnit: 1 << 20, Memory: 1 << 30}, metrics, now)
	var counts counters.Samples
	for i := range 10_000 {
		u := engine.Decision(fmt.Sprintf("/unit/%d", i))
		for n := range 3 {
			at := now.Add(time.Duration(n) * time.Second)
			r.Put([]Capture{{Unit: u, Start: at, End: at, Samples: 1, Data: []byte{byte(n)}}}, &counts)
		}
	}
	b.Run("sweep", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r.Sweep(now)
		}
	})
	b.Run("the coldest first", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r.sorted = false
			r.cfg.Memory = int(r.size.Load()) - 1
			r.bound(&counts)
			if len(r.units) < 5000 {
				b.Fatal("nothing left")
			}
		}
	})
}
