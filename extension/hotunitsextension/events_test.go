// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"go.uber.org/zap/zapcore"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension/internal/metadatatest"
)

func TestEventsReachAllSubscribersInOrder(t *testing.T) {
	r := newRig(t, zapcore.InfoLevel)
	require.False(t, r.Listening())
	r.PublishEvent(Event{Name: GateOpened}) // there is no subscriber
	a, b := r.Subscribe("a"), r.Subscribe("b")
	require.True(t, r.Listening())
	want := []Event{{Name: GateOpened, Time: time.Unix(1, 0)}, {Name: GateClosed, Time: time.Unix(2, 0)}}
	for _, e := range want {
		r.PublishEvent(e)
	}
	for _, s := range []*Subscription{a, b} {
		for _, e := range want {
			require.Equal(t, e, <-s.Events())
		}
		require.Empty(t, s.Events())
	}
	a.Close()
	a.Close()
	r.PublishEvent(want[0])
	require.Empty(t, a.Events())
	require.Len(t, b.Events(), 1)
	b.Close()
	require.False(t, r.Listening())
	metadatatest.AssertEqualHotUnitsEvents(t, r.telemetry, []metricdata.DataPoint[int64]{
		{Value: 2, Attributes: attribute.NewSet(attribute.String("event", GateOpened))},
		{Value: 1, Attributes: attribute.NewSet(attribute.String("event", GateClosed))},
	}, metricdatatest.IgnoreTimestamp())
}

func TestAnEventWithoutTheExtensionIsIgnored(t *testing.T) {
	var h *HotUnits
	require.False(t, h.Listening())
	h.PublishEvent(Event{Name: GateOpened})
}

// TestASlowSubscriberLosesTheNewestEvents publishes many events. A subscriber that does
// not receive loses its newest events. Other subscribers lose no events, and the
// publisher is not delayed.
func TestASlowSubscriberLosesTheNewestEvents(t *testing.T) {
	r := newRig(t, zapcore.InfoLevel)
	slow, fast := r.Subscribe("slow"), r.Subscribe("fast")
	const storm = 10_000
	for i := range storm {
		e := Event{Name: GateOpened, Body: fmt.Sprint(i)}
		r.PublishEvent(e)
		require.Equal(t, e, <-fast.Events())
	}
	require.Len(t, slow.Events(), maxEventsWaiting)
	require.Equal(t, "0", (<-slow.Events()).Body)
	metadatatest.AssertEqualHotUnitsEventsDropped(t, r.telemetry, []metricdata.DataPoint[int64]{
		{Value: storm - maxEventsWaiting, Attributes: attribute.NewSet(attribute.String("subscriber", "slow"))},
	}, metricdatatest.IgnoreTimestamp())
	entries := r.logs.FilterMessage("events dropped: their subscriber is too slow").All()
	require.Len(t, entries, 1, "once an episode")
	require.Equal(t, map[string]any{"subscriber": "slow", "waiting": int64(maxEventsWaiting)}, entries[0].ContextMap())
}

func TestEventsAreBounded(t *testing.T) {
	r := newRig(t, zapcore.InfoLevel)
	s := r.Subscribe("s")
	long := strings.Repeat("ä", maxEventText)
	list := make([]string, maxEventList+1)
	list[0] = long
	attributes := []attribute.KeyValue{attribute.String("text", long), attribute.StringSlice("list", list), attribute.Int("n", 1)}
	for i := range maxEventAttributes {
		attributes = append(attributes, attribute.Int(fmt.Sprint(i), i))
	}
	r.PublishEvent(Event{Name: GateOpened, Body: long, Resource: attributes[:1], Attributes: attributes, Dropped: 1})
	e := <-s.Events()
	require.Equal(t, long, attributes[0].Value.AsString(), "the publisher's is not changed")
	require.Equal(t, 1+3, e.Dropped)
	require.Len(t, e.Attributes, maxEventAttributes)
	require.Equal(t, long[:maxEventText], e.Body)
	require.Equal(t, long[:maxEventText], e.Resource[0].Value.AsString())
	require.Equal(t, long[:maxEventText], e.Attributes[0].Value.AsString())
	require.Len(t, e.Attributes[1].Value.AsStringSlice(), maxEventList)
	require.Equal(t, long[:maxEventText], e.Attributes[1].Value.AsStringSlice()[0])
	require.EqualValues(t, 1, e.Attributes[2].Value.AsInt64())
	require.Equal(t, "", cutText(""))
	require.Equal(t, strings.Repeat("x", maxEventText-1), cutText(strings.Repeat("x", maxEventText-1)+"ä"), "no half of a character")
}

func TestResourcesAreCopiedWithinBounds(t *testing.T) {
	m := pcommon.NewMap()
	m.PutStr("service.name", "checkout")
	m.PutStr("process.pid", "skipped")
	m.PutInt("int", 1)
	m.PutDouble("double", 0.5)
	m.PutBool("bool", true)
	m.PutEmptySlice("list")
	m.PutStr("long", strings.Repeat("x", maxResourceSize))
	for i := range maxResourceAttributes {
		m.PutInt(fmt.Sprint(i), 0)
	}
	r := ResourceOf(m, func(key string) bool { return key == "process.pid" })
	require.Equal(t, []attribute.KeyValue{
		attribute.String("service.name", "checkout"), attribute.Int("int", 1), attribute.Float64("double", 0.5), attribute.Bool("bool", true),
	}, r.Attributes[:4])
	require.Len(t, r.Attributes, maxResourceAttributes)
	require.Equal(t, 1+4, r.Dropped)
	require.LessOrEqual(t, r.Size, maxResourceSize)
}

func TestReadingsAreThoseOfAllSourcesWithinTheBound(t *testing.T) {
	r := newRig(t, zapcore.InfoLevel)
	out, left := r.Readings(1)
	require.Empty(t, out)
	require.Zero(t, left)
	serve := func(names ...string) func() {
		return r.ServeReadings(func(dst []UnitReadings, most int) ([]UnitReadings, int) {
			n := min(most, len(names))
			for _, name := range names[:n] {
				dst = append(dst, UnitReadings{Unit: name})
			}
			return dst, len(names) - n
		})
	}
	stop := serve("a", "b")
	serve("c", "d")
	out, left = r.Readings(3)
	require.Equal(t, []UnitReadings{{Unit: "a"}, {Unit: "b"}, {Unit: "c"}}, out)
	require.Equal(t, 1, left)
	stop()
	stop()
	out, left = r.Readings(3)
	require.Equal(t, []UnitReadings{{Unit: "c"}, {Unit: "d"}}, out)
	require.Zero(t, left)
}

func TestManyPublishEventsAndSubscribeAtOnce(t *testing.T) {
	r := newRig(t, zapcore.InfoLevel)
	var publishing sync.WaitGroup
	done := make(chan struct{})
	var subscribing sync.WaitGroup
	for range 4 {
		subscribing.Go(func() {
			for {
				s := r.Subscribe("s")
				select {
				case <-s.Events():
				case <-done:
				}
				s.Close()
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for range 4 {
		publishing.Go(func() {
			for range 2000 {
				r.PublishEvent(Event{Name: GateOpened})
			}
		})
	}
	publishing.Wait()
	close(done)
	subscribing.Wait()
	require.False(t, r.Listening())
}

// BenchmarkPublishEvent measures publishing an event without a
// subscriber and with one subscriber.
func BenchmarkPublishEvent(b *testing.B) {
	e := Event{Name: GateOpened, Attributes: []attribute.KeyValue{attribute.String("a", "b"), attribute.Float64("c", 1)}}
	b.Run("nobody", func(b *testing.B) {
		r := newRig(b, zapcore.InfoLevel)
		for b.Loop() {
			r.PublishEvent(e)
		}
	})
	b.Run("subscriber", func(b *testing.B) {
		r := newRig(b, zapcore.InfoLevel)
		s := r.Subscribe("s")
		for b.Loop() {
			r.PublishEvent(e)
			<-s.Events()
		}
	})
}
