// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadatatest"
)

// requireOutcome checks that exactly n samples have an outcome, and that all have this
// outcome.
func (r *rig) requireOutcome(t *testing.T, outcome string, n int64) {
	t.Helper()
	metadatatest.AssertEqualCPUTriggerSamples(t, r.telemetry, []metricdata.DataPoint[int64]{
		{Attributes: attribute.NewSet(attribute.String("outcome", outcome)), Value: n},
	}, metricdatatest.IgnoreTimestamp())
}

// TestShutdownDoesNotWaitForEachRecord uses a next component that returns only when its
// context is cancelled. All due records share one deadline. Records that were not sent by
// the deadline are counted as refused.
func TestShutdownDoesNotWaitForEachRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1, 64<<10)
		r.fire(t)
		calls := 0
		s := NewSender(r.Recorder, zap.NewNop(), func(ctx context.Context, _ Batch) (bool, counters.Samples) {
			calls++
			<-ctx.Done()
			return false, counters.Samples{}
		})
		began := time.Now()
		s.Shutdown(context.Background())
		require.Equal(t, ShutdownTimeout, time.Since(began))
		require.Equal(t, 1, calls)
		r.requireOutcome(t, "refused", 2*events)
	})
}

// stuck is a next component that blocks and ignores its context for some units.
type stuck struct {
	units map[*trigger.Decision]bool
	block chan struct{}

	mu         sync.Mutex
	now, most  int // calls
	sent       map[*trigger.Decision][]time.Time
	withinCall map[*trigger.Decision]bool
	disorder   bool // there were two calls for one unit
}

func (s *stuck) send(_ context.Context, b Batch) (settled bool, counts counters.Samples) {
	unit := b.from.unit
	s.mu.Lock()
	s.now++
	s.most = max(s.most, s.now)
	s.disorder = s.disorder || s.withinCall[unit]
	s.withinCall[unit] = true
	s.mu.Unlock()
	if s.units[unit] {
		<-s.block
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now--
	s.withinCall[unit] = false
	s.sent[unit] = append(s.sent[unit], b.Start)
	counts[counters.SamplePassed] = int64(b.Samples)
	return true, counts
}

func newStuck(units ...*trigger.Decision) *stuck {
	s := &stuck{units: map[*trigger.Decision]bool{}, block: make(chan struct{}), sent: map[*trigger.Decision][]time.Time{}, withinCall: map[*trigger.Decision]bool{}}
	for _, u := range units {
		s.units[u] = true
	}
	return s
}

// TestASlowCallHoldsBackItsUnitAlone checks that at most a few calls run at the same
// time. There is at most one call per unit, because the records of a unit must be sent in
// order.
func TestASlowCallHoldsBackItsUnitAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 10, 64<<10)
		r.fire(t)
		next := newStuck(r.units[:3]...)
		core, logs := observer.New(zap.WarnLevel)
		s := NewSender(r.Recorder, zap.New(core), next.send)
		s.Start()
		synctest.Wait()
		require.Equal(t, 3, next.now)
		require.Len(t, next.sent, 7)
		for _, u := range r.units[3:] {
			require.Len(t, next.sent[u], 2)
			require.True(t, slices.IsSortedFunc(next.sent[u], time.Time.Compare))
		}
		require.Zero(t, logs.Len())
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 3, logs.FilterMessage("next component does not return").Len())

		close(next.block)
		synctest.Wait()
		require.Len(t, next.sent, 10)
		for _, u := range r.units {
			require.Len(t, next.sent[u], 2)
			require.True(t, slices.IsSortedFunc(next.sent[u], time.Time.Compare))
		}
		require.LessOrEqual(t, next.most, 4)
		require.False(t, next.disorder)
		samples, _ := r.Held()
		require.Zero(t, samples)
		s.Shutdown(t.Context())
	})
}

// TestShutdownLeavesBehindCallsThatDoNotReturn checks that the records of blocked calls
// are lost and logged. The records are counted once, even if the calls return later.
func TestShutdownLeavesBehindCallsThatDoNotReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 10, 64<<10)
		r.fire(t)
		next := newStuck(r.units...)
		core, logs := observer.New(zap.WarnLevel)
		s := NewSender(r.Recorder, zap.New(core), next.send)
		s.Start()
		synctest.Wait()
		require.Equal(t, 4, next.now, "as many calls at a time")
		began := time.Now()
		s.Shutdown(context.Background())
		require.Equal(t, ShutdownTimeout+callGrace, time.Since(began))
		lost := logs.FilterMessage("recorded profiles not sent: the next component did not accept them by the end of the shutdown").All()
		require.Len(t, lost, 1)
		require.EqualValues(t, 10*2*events, lost[0].ContextMap()["samples"])
		r.requireOutcome(t, "refused", 10*2*events)
		close(next.block)
		synctest.Wait()
		require.Len(t, next.sent, 4)
		r.requireOutcome(t, "refused", 10*2*events)
	})
}
