// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension/internal/metadata"
	"github.com/hotprofile/hotprofile/extension/hotunitsextension/internal/metadatatest"
)

var (
	first  = component.MustNewID("cpu_trigger")
	second = component.MustNewIDWithName("cpu_trigger", "2")

	checkout = Unit{Name: "/system.slice/checkout.service", Cgroup: "/system.slice/checkout.service"}
	cart     = Unit{Name: "4f1c0c6b8a2e", Cgroup: "/docker/4f1c0c6b8a2e", ContainerID: "4f1c0c6b8a2e"}
	process  = Unit{Name: "5711:881234", PID: 5711, Start: 881234}
)

type rig struct {
	*HotUnits
	logs      *observer.ObservedLogs
	telemetry *componenttest.Telemetry
}

// newRig creates and starts the extension in the same way as the collector.
func newRig(t testing.TB, level zapcore.Level) *rig {
	t.Helper()
	core, logs := observer.New(level)
	r := &rig{logs: logs, telemetry: componenttest.NewTelemetry()}
	set := extension.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: r.telemetry.NewTelemetrySettings()}
	set.Logger = zap.New(core)
	factory := NewFactory()
	ext, err := factory.Create(context.Background(), set, factory.CreateDefaultConfig())
	require.NoError(t, err)
	require.NoError(t, ext.Start(context.Background(), componenttest.NewNopHost()))
	t.Cleanup(func() {
		require.NoError(t, ext.Shutdown(context.Background()))
		require.NoError(t, ext.Shutdown(context.Background()), "again")
		require.NoError(t, r.telemetry.Shutdown(context.Background()))
	})
	r.HotUnits = ext.(*HotUnits)
	return r
}

// notified reports whether a watcher has a token. It consumes the token.
func notified(changed <-chan struct{}) bool {
	select {
	case <-changed:
		return true
	default:
		return false
	}
}

func TestHotIsTheUnionOfWhatPublishersSayInOrder(t *testing.T) {
	r := newRig(t, zapcore.InfoLevel)
	a, b := r.Publisher(first), r.Publisher(second)
	require.Empty(t, r.Hot())
	steps := []struct {
		name string
		do   func()
		want []Unit
	}{
		{"one", func() { a.Publish([]Unit{process, cart}) }, []Unit{cart, process}},
		{"another that overlaps", func() { b.Publish([]Unit{cart, checkout}) }, []Unit{checkout, cart, process}},
		{"the first takes one back", func() { a.Publish([]Unit{cart}) }, []Unit{checkout, cart}},
		{"what both say stays while one says it", func() { a.Publish(nil) }, []Unit{checkout, cart}},
		{"given twice", func() { a.Publish([]Unit{process, process}) }, []Unit{checkout, cart, process}},
		{"one ends", b.Close, []Unit{process}},
		{"and is heard no more", func() { b.Publish([]Unit{cart}); b.Close() }, []Unit{process}},
		{"all end", a.Close, nil},
	}
	for _, s := range steps {
		s.do()
		require.Equal(t, append([]Unit(nil), s.want...), r.Hot(), s.name)
	}
}

// TestPublishersOfOneIDDoNotOverwriteEachOther covers a processor in two pipelines. Such
// a processor consists of two components with the same ID.
func TestPublishersOfOneIDDoNotOverwriteEachOther(t *testing.T) {
	r := newRig(t, zapcore.InfoLevel)
	a, b := r.Publisher(first), r.Publisher(first)
	a.Publish([]Unit{cart})
	b.Publish([]Unit{checkout})
	require.Equal(t, []Unit{checkout, cart}, r.Hot())
	b.Publish(nil)
	require.Equal(t, []Unit{cart}, r.Hot())
	b.Close()
	require.Equal(t, []Unit{cart}, r.Hot())
}

func TestWhatIsPublishedAndReadIsCopied(t *testing.T) {
	r := newRig(t, zapcore.InfoLevel)
	mine := []Unit{process, cart}
	p := r.Publisher(first)
	p.Publish(mine)
	require.Equal(t, []Unit{process, cart}, mine, "not sorted in place")
	mine[0], mine[1] = checkout, checkout
	read := r.Hot()
	read[0] = checkout
	require.Equal(t, []Unit{cart, process}, r.Hot())
}

func TestWatchersAreToldOfEachChangeOnceAndOfNothingElse(t *testing.T) {
	r := newRig(t, zapcore.InfoLevel)
	p := r.Publisher(first)
	early, stopEarly := r.Watch()
	defer stopEarly()
	require.False(t, notified(early), "nothing is hot yet")
	p.Publish(nil)
	require.False(t, notified(early), "still nothing")

	p.Publish([]Unit{cart, checkout})
	late, stopLate := r.Watch()
	require.True(t, notified(early))
	require.True(t, notified(late), "what was hot before is notified at first")
	require.False(t, notified(early))

	p.Publish([]Unit{checkout, cart})
	require.False(t, notified(early), "another order is no change")
	r.Publisher(second).Publish([]Unit{cart})
	require.False(t, notified(early), "nor what was notified already")

	for range 10 { // no watcher reads, and the publisher must not block
		p.Publish(nil)
		p.Publish([]Unit{process})
	}
	require.True(t, notified(early))
	require.False(t, notified(early), "tokens do not pile up")
	require.Equal(t, []Unit{cart, process}, r.Hot())

	require.True(t, notified(late))
	stopLate()
	stopLate()
	p.Publish(nil)
	require.False(t, notified(late), "stopped")
	require.True(t, notified(early))
}

func many(n int) []Unit {
	out := make([]Unit, n)
	for i := range out {
		out[i] = Unit{Name: fmt.Sprintf("/kubepods/unit%05d", n-i), Cgroup: "/kubepods"}
	}
	return out
}

func TestBeyondTheBoundTheHottestStayAndTheRestIsCounted(t *testing.T) {
	r := newRig(t, zapcore.InfoLevel)
	p := r.Publisher(first)
	hottest := many(MaxUnits + 3)
	p.Publish(hottest)
	want := slices.Clone(hottest[:MaxUnits])
	slices.SortFunc(want, func(a, b Unit) int { return strings.Compare(a.Name, b.Name) })
	require.Equal(t, want, r.Hot())
	p.Publish(hottest)
	p.Publish(hottest[:MaxUnits+1]) // the same units are published, and fewer are cut
	opts := []metricdatatest.Option{metricdatatest.IgnoreTimestamp()}
	metadatatest.AssertEqualHotUnitsUnitsCut(t, r.telemetry, []metricdata.DataPoint[int64]{{Value: 3 + 1}}, opts...)
	metadatatest.AssertEqualHotUnitsUnits(t, r.telemetry, []metricdata.DataPoint[int64]{{Value: MaxUnits}}, opts...)
	const message = "too many hot units to publish"
	require.Equal(t, 1, r.logs.FilterMessage(message).Len(), "once an episode")
	p.Publish(nil)
	p.Publish(hottest)
	require.Equal(t, 2, r.logs.FilterMessage(message).Len())
	p.Close()
	metadatatest.AssertEqualHotUnitsUnits(t, r.telemetry, []metricdata.DataPoint[int64]{{Value: 0}}, opts...)
}

func TestChangesAreInTheDebugLog(t *testing.T) {
	r := newRig(t, zapcore.DebugLevel)
	p := r.Publisher(second)
	p.Publish([]Unit{cart, process})
	p.Publish([]Unit{process, cart})
	p.Publish([]Unit{process, checkout})
	p.Close()
	var got []map[string]any
	for _, e := range r.logs.FilterMessage("hot units changed").All() {
		got = append(got, e.ContextMap())
	}
	require.Equal(t, []map[string]any{
		{"publisher": "cpu_trigger/2", "units": int64(2), "now_hot": []any{cart.Name, process.Name}, "not_hot": []any{}},
		{"publisher": "cpu_trigger/2", "units": int64(2), "now_hot": []any{checkout.Name}, "not_hot": []any{cart.Name}},
		{"publisher": "cpu_trigger/2", "units": int64(0), "now_hot": []any{}, "not_hot": []any{checkout.Name, process.Name}},
	}, got)
	r.Publisher(first).Publish(many(100))
	last := r.logs.FilterMessage("hot units changed").All()[3].ContextMap()
	require.Len(t, last["now_hot"], maxNamed)
	require.EqualValues(t, 100, last["units"])
}

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

func TestComponentsFindTheExtensionByTheirHost(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	log := zap.New(core)
	other, err := NewFactory().Create(t.Context(), extensiontest.NewNopSettings(metadata.Type), &Config{})
	require.NoError(t, err)
	r := newRig(t, zapcore.InfoLevel)
	nop, err := extensiontest.NewNopFactory().Create(t.Context(), extensiontest.NewNopSettings(extensiontest.NopType), nil)
	require.NoError(t, err)
	nopID, plain, named := component.MustNewID("a"), component.NewID(metadata.Type), component.NewIDWithName(metadata.Type, "a")

	require.Nil(t, Find(componenttest.NewNopHost(), log))
	require.Nil(t, Find(host{nopID: nop}, log))
	require.Same(t, other, Find(host{nopID: nop, named: other}, log))
	require.Zero(t, logs.Len())
	require.Same(t, other, Find(host{plain: other, named: r.HotUnits}, log))
	entries := logs.FilterMessage("found several hot_units extensions").All()
	require.Len(t, entries, 1)
	require.Equal(t, map[string]any{"used": "hot_units", "extensions": int64(2)}, entries[0].ContextMap())
	require.NoError(t, other.Shutdown(t.Context()), "without start")
}

func TestManyPublishAndWatchAtOnce(t *testing.T) {
	r := newRig(t, zapcore.DebugLevel)
	var publishing, watching sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		watching.Go(func() {
			changed, stop := r.Watch()
			defer stop()
			for {
				select {
				case <-changed:
					if !slices.IsSortedFunc(r.Hot(), Unit.compare) {
						t.Error("not sorted")
					}
				case <-done:
					return
				}
			}
		})
	}
	for i := range 4 {
		publishing.Go(func() {
			p := r.Publisher(first)
			defer p.Close()
			for n := range 500 {
				p.Publish(many((n * (i + 1)) % 17))
			}
		})
	}
	publishing.Wait()
	close(done)
	watching.Wait()
	require.Empty(t, r.Hot())
}

func TestPublishingTheSameSetAllocatesNothing(t *testing.T) {
	r := newRig(t, zapcore.InfoLevel)
	p := r.Publisher(first)
	hot := many(50)
	p.Publish(hot)
	p.Publish(hot)
	require.Zero(t, testing.AllocsPerRun(100, func() { p.Publish(hot) }))
	p.Publish(nil)
	require.Zero(t, testing.AllocsPerRun(100, func() { p.Publish(nil) }))
}

// BenchmarkPublish measures the cost of Publish per decision tick without hot units, with
// ten hot units, and with the maximum number of hot units. The baseline is the cost of a
// mere comparison of the slices.
func BenchmarkPublish(b *testing.B) {
	for _, n := range []int{0, 10, MaxUnits} {
		hot := many(n)
		b.Run(fmt.Sprintf("same/%d", n), func(b *testing.B) {
			p := newRig(b, zapcore.InfoLevel).Publisher(first)
			p.Publish(hot)
			p.Publish(hot)
			b.ReportAllocs()
			for b.Loop() {
				p.Publish(hot)
			}
		})
		b.Run(fmt.Sprintf("compare/%d", n), func(b *testing.B) {
			other := slices.Clone(hot)
			b.ReportAllocs()
			for b.Loop() {
				if !slices.Equal(hot, other) {
					b.Fatal("not equal")
				}
			}
		})
	}
}
