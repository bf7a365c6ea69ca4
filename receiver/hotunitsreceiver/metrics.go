// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsreceiver

import (
	"context"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/receiver/hotunitsreceiver/internal/metadata"
)

// metrics emits readings.
type metrics struct {
	worker
	interval  time.Duration
	maxUnits  int
	next      consumer.Metrics
	builder   *metadata.MetricsBuilder
	telemetry *metadata.TelemetryBuilder
	hot       *hotunitsextension.HotUnits

	used map[string]used // of the units in the last readings
	cut  int             // number of units cut from the last readings
}

// used holds the last readings of a unit. seconds is the cumulative CPU time, and at is the
// time at which it was read. memory is the time at which the memory was read.
type used struct {
	seconds float64
	at      time.Time
	memory  time.Time
}

func newMetrics(set receiver.Settings, cfg *Config, next consumer.Metrics) (*metrics, error) {
	telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	w, err := newWorker(set)
	if err != nil {
		return nil, err
	}
	return &metrics{
		worker: w, interval: cfg.CollectionInterval, maxUnits: cfg.MaxUnits, next: next,
		builder: metadata.NewMetricsBuilder(cfg.MetricsBuilderConfig, set), telemetry: telemetry,
	}, nil
}

// Start starts emitting readings at each interval.
func (m *metrics) Start(_ context.Context, host component.Host) error {
	if m.hot = m.find(host); m.hot != nil {
		m.start(m.run)
	}
	return nil
}

func (m *metrics) run(stop <-chan struct{}) {
	tick := time.NewTicker(m.interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.emit()
		case <-stop:
			return
		}
	}
}

func (m *metrics) emit() {
	readings, cut := m.hot.Readings(m.maxUnits)
	m.countCut(cut)
	md := m.metrics(readings)
	n := md.DataPointCount()
	if n == 0 {
		return
	}
	ctx := m.obs.StartMetricsOp(m.ctx)
	err := m.call("readings", n, func(ctx context.Context) error { return m.next.ConsumeMetrics(ctx, md) })
	m.obs.EndMetricsOp(ctx, metadata.Type.String(), n, err)
}

// countCut counts units whose readings were omitted. It logs once per episode.
func (m *metrics) countCut(cut int) {
	if cut > 0 {
		m.telemetry.HotUnitsReadingsCut.Add(context.Background(), int64(cut))
		if m.cut == 0 {
			m.log.Warn("too many units for readings", zap.Int("max_units", m.maxUnits), zap.Int("cut", cut))
		}
	}
	m.cut = cut
}

// metrics returns the data points for readings. Each unit has its own resource.
func (m *metrics) metrics(readings []hotunitsextension.UnitReadings) pmetric.Metrics {
	now := make(map[string]used, len(m.used))
	for _, r := range readings {
		at := pcommon.NewTimestampFromTime(r.Time)
		for _, c := range r.Conditions {
			if c.Known {
				m.builder.RecordHotprofileUnitReadingDataPoint(at, c.Value, r.Unit, c.Policy, c.Monitor, c.Window)
			}
			m.builder.RecordHotprofileUnitThresholdDataPoint(at, c.Threshold, r.Unit, c.Policy, c.Monitor, c.Window)
		}
		for _, p := range r.Policies {
			for _, state := range hotunitsextension.PolicyStates() {
				value := int64(0)
				if state == p.State {
					value = 1
				}
				m.builder.RecordHotprofileUnitStateDataPoint(at, value, r.Unit, p.Policy, metadata.MapAttributeState[state])
			}
		}
		if r.ContainerID != "" {
			is := used{r.CPUSeconds, r.CPUTime, r.MemoryTime}
			was := m.used[r.Unit]
			if !was.at.IsZero() && is.at.After(was.at) && is.seconds >= was.seconds {
				m.builder.RecordContainerCPUUsageDataPoint(at, (is.seconds-was.seconds)/is.at.Sub(was.at).Seconds(), r.Unit)
			}
			if is.memory.After(was.memory) {
				m.builder.RecordContainerMemoryWorkingSetDataPoint(at, int64(r.WorkingSet), r.Unit)
			}
			now[r.Unit] = is
		}
		resource := pcommon.NewResource()
		put(resource.Attributes(), r.Resource)
		m.builder.EmitForResource(metadata.WithResource(resource))
		m.emitPeers(r, at, resource)
	}
	m.used = now
	return m.builder.Emit()
}

// Shutdown stops emitting readings.
func (m *metrics) Shutdown(ctx context.Context) error {
	defer m.telemetry.Shutdown()
	return m.worker.Shutdown(ctx)
}
