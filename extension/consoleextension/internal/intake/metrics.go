// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package intake

import (
	"cmp"
	"math"
	"slices"
	"strconv"
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
func Metrics(to *store.Store, md pmetric.Metrics) {
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

// peerPrefix is the prefix of the metrics of peers, which the receiver hot_units emits.
const peerPrefix = attr.Prefix + "peer."

// peerValues maps a key to the index of a peer's value in the store. The key is the name of
// the metric, followed by the direction or the limit of the point, if any.
var peerValues = map[string]int{
	"io transmit":               store.PeerSent,
	"io receive":                store.PeerReceived,
	"connects":                  store.PeerConnects,
	"connect_failures":          store.PeerConnectFailures,
	"segments":                  store.PeerSegments,
	"retransmits":               store.PeerRetransmits,
	"send_time receiver_window": store.PeerReceiverWindow,
	"send_time send_buffer":     store.PeerSendBuffer,
	"send_time network":         store.PeerPath,
	"queue transmit":            store.PeerSendQueue,
	"queue receive":             store.PeerReceiveQueue,
	"connections":               store.PeerConnections,
	"rtt":                       store.PeerRTT,
	"rtt_variation":             store.PeerRTTVariation,
}

// peers maps each value of hotprofile.unit to the reports about the peers of the unit.
type peers map[string][]store.PeerReport

// add adds a point.
func (p peers) add(metric string, point pmetric.NumberDataPoint) {
	a := point.Attributes()
	name := metric[len(peerPrefix):]
	for _, of := range []string{text(a, attr.IODirection), text(a, attr.PeerLimit)} {
		if of != "" {
			name += " " + of
		}
	}
	unit, value := text(a, attr.Unit), valueOf(point)
	index, known := peerValues[name]
	if unit == "" || math.IsNaN(value) || !known {
		return
	}
	r := store.PeerReport{
		PeerKey:  store.PeerKey{Address: text(a, attr.PeerAddress), Direction: text(a, attr.PeerDirection), Transport: text(a, attr.Transport)},
		PeerName: store.PeerName{Service: text(a, attr.PeerService), Name: text(a, attr.PeerUnit)},
		Start:    point.StartTimestamp().AsTime(), At: point.Timestamp().AsTime(),
		Index: index, Value: value,
	}
	port := cmp.Or(text(a, attr.PeerPort), text(a, attr.LocalPort))
	if n, err := strconv.ParseUint(port, 10, 16); err == nil {
		r.Port = int(n)
	}
	p[unit] = append(p[unit], r)
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

// appendOwn adds the points of a collector's own metric. For a histogram whose points have
// a count and a sum, it adds the means.
func appendOwn(all []store.Metric, m pmetric.Metric) []store.Metric {
	monotonic := m.Type() == pmetric.MetricTypeSum && m.Sum().IsMonotonic()
	delta := monotonic && m.Sum().AggregationTemporality() == pmetric.AggregationTemporalityDelta
	add := func(attributes pcommon.Map, start, at pcommon.Timestamp, value float64) {
		of := store.Metric{Name: m.Name(), Unit: m.Unit(), Attributes: textsOf(attributes), At: at.AsTime(), Value: value, Monotonic: monotonic}
		if span := of.At.Sub(start.AsTime()).Seconds(); delta && start != 0 && span > 0 {
			of.PerSecond = value / span
		}
		all = append(all, of)
	}
	for _, p := range points(m).All() {
		if value := valueOf(p); !math.IsNaN(value) {
			add(p.Attributes(), p.StartTimestamp(), p.Timestamp(), value)
		}
	}
	switch m.Type() {
	case pmetric.MetricTypeHistogram:
		for _, p := range m.Histogram().DataPoints().All() {
			if p.Count() > 0 && p.HasSum() {
				add(p.Attributes(), p.StartTimestamp(), p.Timestamp(), p.Sum()/float64(p.Count()))
			}
		}
	case pmetric.MetricTypeExponentialHistogram:
		for _, p := range m.ExponentialHistogram().DataPoints().All() {
			if p.Count() > 0 && p.HasSum() {
				add(p.Attributes(), p.StartTimestamp(), p.Timestamp(), p.Sum()/float64(p.Count()))
			}
		}
	}
	return all
}
