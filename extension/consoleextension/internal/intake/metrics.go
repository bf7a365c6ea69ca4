// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package intake

import (
	"context"
	"math"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// The receiver hot_units emits these metrics of units.
const (
	unitReading   = attr.Prefix + "unit.reading"
	unitThreshold = attr.Prefix + "unit.threshold"
	unitState     = attr.Prefix + "unit.state"
)

// ownPrefixes lists the name prefixes of a collector's own metrics.
var ownPrefixes = []string{"otelcol_", "otelcol.", "cpu_profiler.", "cpu_trigger.", "hot_units.", "pprof.", "console."}

// Metrics stores the readings and the peers of units, and the metrics of collectors. It
// does not wait for the disk.
func Metrics(ctx context.Context, to *store.Store, md pmetric.Metrics) error {
	for _, rm := range md.ResourceMetrics().All() {
		resource := textsOf(rm.Resource().Attributes())
		units := units{}
		peers := peers{}
		var own []store.Metric
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				add := func(string, pmetric.NumberDataPoint) {}
				switch name := m.Name(); {
				case name == unitReading || name == unitThreshold || name == unitState:
					add = units.add
				case strings.HasPrefix(name, peerPrefix):
					add = peers.add
				case isOwn(name):
					own = appendOwn(own, m)
				}
				for _, p := range points(m).All() {
					add(m.Name(), p)
				}
			}
		}
		for unit, of := range units {
			to.PutReadings(store.Unit{Host: resource[attr.HostName], Name: unit, Resource: resource}, of.readings, of.states)
		}
		for unit, reports := range peers {
			to.PutPeers(store.Unit{Host: resource[attr.HostName], Name: unit, Resource: resource}, reports)
		}
		if of := instanceOf(resource); len(own) > 0 && of.ID != "" {
			to.PutMetrics(of, own)
		}
	}
	return ctx.Err()
}

// units maps each value of hotprofile.unit in a resource to the readings and states of
// that unit. A resource usually describes one unit.
type units map[string]*unitReadings

type unitReadings struct {
	readings []store.Reading
	states   map[string]string
}

// add adds a point. The value and the threshold of a reading are points of two metrics,
// which the store merges.
func (u units) add(metric string, p pmetric.NumberDataPoint) {
	a, value := p.Attributes(), valueOf(p)
	name, policy := text(a, attr.Unit), text(a, attr.TriggerPolicy)
	if name == "" {
		return
	}
	of := u[name]
	if of == nil {
		of = &unitReadings{states: map[string]string{}}
		u[name] = of
	}
	r := store.Reading{
		Condition: store.Condition{Policy: policy, Monitor: text(a, attr.TriggerMonitor), Window: text(a, attr.TriggerWindow)},
		At:        p.Timestamp().AsTime(), Value: math.NaN(), Threshold: math.NaN(),
	}
	switch metric {
	case unitState:
		if value == 1 {
			of.states[policy] = text(a, attr.PolicyState)
		}
		return
	case unitReading:
		r.Value = value
	default:
		r.Threshold = value
	}
	of.readings = append(of.readings, r)
}

// points returns the points of a gauge or a sum. For other metrics,
// it returns an empty slice.
func points(m pmetric.Metric) pmetric.NumberDataPointSlice {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return m.Gauge().DataPoints()
	case pmetric.MetricTypeSum:
		return m.Sum().DataPoints()
	}
	return pmetric.NewNumberDataPointSlice()
}

// valueOf returns the value of a point, or NaN if the point has no value.
func valueOf(p pmetric.NumberDataPoint) float64 {
	switch {
	case p.Flags().NoRecordedValue():
	case p.ValueType() == pmetric.NumberDataPointValueTypeDouble:
		return p.DoubleValue()
	case p.ValueType() == pmetric.NumberDataPointValueTypeInt:
		return float64(p.IntValue())
	}
	return math.NaN()
}

func isOwn(name string) bool {
	return slices.ContainsFunc(ownPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// appendOwn adds the points of a collector's own metric. For a
// histogram, it adds the mean.
func appendOwn(all []store.Metric, m pmetric.Metric) []store.Metric {
	monotonic := m.Type() == pmetric.MetricTypeSum && m.Sum().IsMonotonic()
	delta := monotonic && m.Sum().AggregationTemporality() == pmetric.AggregationTemporalityDelta
	for _, p := range points(m).All() {
		v := valueOf(p)
		if math.IsNaN(v) {
			continue
		}
		of := store.Metric{Name: m.Name(), Unit: m.Unit(), Attributes: textsOf(p.Attributes()), At: p.Timestamp().AsTime(), Value: v, Monotonic: monotonic}
		if span := of.At.Sub(p.StartTimestamp().AsTime()).Seconds(); delta && p.StartTimestamp() != 0 && span > 0 {
			of.PerSecond = v / span
		}
		all = append(all, of)
	}
	switch m.Type() {
	case pmetric.MetricTypeHistogram:
		for _, p := range m.Histogram().DataPoints().All() {
			all = appendMean(all, m, p)
		}
	case pmetric.MetricTypeExponentialHistogram:
		for _, p := range m.ExponentialHistogram().DataPoints().All() {
			all = appendMean(all, m, p)
		}
	}
	return all
}

// histogramPoint is a point of a histogram or of an exponential histogram.
type histogramPoint interface {
	Attributes() pcommon.Map
	Timestamp() pcommon.Timestamp
	HasSum() bool
	Sum() float64
	Count() uint64
}

// appendMean appends the mean of a histogram point, if the point contains a count and a
// sum.
func appendMean(all []store.Metric, m pmetric.Metric, p histogramPoint) []store.Metric {
	if p.Count() == 0 || !p.HasSum() {
		return all
	}
	return append(all, store.Metric{
		Name: m.Name(), Unit: m.Unit(), Attributes: textsOf(p.Attributes()), At: p.Timestamp().AsTime(), Value: p.Sum() / float64(p.Count()),
	})
}
