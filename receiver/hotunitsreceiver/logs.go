// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsreceiver

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/otel/attribute"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/receiver/hotunitsreceiver/internal/metadata"
)

// maxBatch is the maximum number of events per call of the next component.
const maxBatch = 256

// logs emits events as log records.
type logs struct {
	worker
	version string
	wanted  []string // names of the wanted events
	next    consumer.Logs
	events  *hotunitsextension.Subscription
}

func newLogs(set receiver.Settings, cfg *Config, next consumer.Logs) (*logs, error) {
	w, err := newWorker(set)
	if err != nil {
		return nil, err
	}
	return &logs{worker: w, version: set.BuildInfo.Version, wanted: cfg.Events, next: next}, nil
}

// Start subscribes to the wanted events.
func (l *logs) Start(_ context.Context, host component.Host) error {
	hot := l.find(host)
	if hot == nil {
		return nil
	}
	l.events = hot.Subscribe(l.id.String(), l.wanted...)
	l.start(l.run)
	return nil
}

// run emits events as they arrive. At the end, it emits the events that are still waiting.
func (l *logs) run(stop <-chan struct{}) {
	var batch []hotunitsextension.Event
	for {
		select {
		case e := <-l.events.Events():
			batch = l.events.AppendWaiting(append(batch[:0], e), maxBatch)
			l.emit(batch)
			clear(batch)
		case <-stop:
			l.events.Close()
			for {
				if batch = l.events.AppendWaiting(batch[:0], maxBatch); len(batch) == 0 {
					return
				}
				l.emit(batch)
			}
		}
	}
}

func (l *logs) emit(batch []hotunitsextension.Event) {
	ld := l.records(batch, time.Now())
	n := len(batch)
	ctx := l.obs.StartLogsOp(l.ctx)
	err := l.call("events", n, func(ctx context.Context) error { return l.next.ConsumeLogs(ctx, ld) })
	l.obs.EndLogsOp(ctx, metadata.Type.String(), n, err)
}

// records returns the log records for events. If adjacent events have equal resources,
// their records share a resource.
func (l *logs) records(batch []hotunitsextension.Event, now time.Time) plog.Logs {
	ld := plog.NewLogs()
	var of []attribute.KeyValue
	var records plog.LogRecordSlice
	for _, e := range batch {
		if ld.ResourceLogs().Len() == 0 || !slices.Equal(of, e.Resource) {
			of = e.Resource
			rl := ld.ResourceLogs().AppendEmpty()
			put(rl.Resource().Attributes(), of)
			sl := rl.ScopeLogs().AppendEmpty()
			sl.Scope().SetName(metadata.ScopeName)
			sl.Scope().SetVersion(l.version)
			records = sl.LogRecords()
		}
		r := records.AppendEmpty()
		r.SetEventName(e.Name)
		r.SetTimestamp(pcommon.NewTimestampFromTime(e.Time))
		r.SetObservedTimestamp(pcommon.NewTimestampFromTime(now))
		r.SetSeverityNumber(plog.SeverityNumberInfo)
		r.SetSeverityText("INFO")
		r.Body().SetStr(e.Body)
		put(r.Attributes(), e.Attributes)
		r.SetDroppedAttributesCount(uint32(e.Dropped))
		r.SetTraceID(pcommon.TraceID(e.TraceID))
		r.SetSpanID(pcommon.SpanID(e.SpanID))
	}
	return ld
}

// put puts attributes into an empty map.
func put(m pcommon.Map, attributes []attribute.KeyValue) {
	m.EnsureCapacity(len(attributes))
	for _, kv := range attributes {
		v := m.PutEmpty(string(kv.Key))
		if kv.Value.Type() == attribute.STRINGSLICE {
			list := v.SetEmptySlice()
			for _, s := range kv.Value.AsStringSlice() {
				list.AppendEmpty().SetStr(s)
			}
			continue
		}
		_ = v.FromRaw(kv.Value.AsInterface()) // cannot fail for a number, a text or a truth value
	}
}
