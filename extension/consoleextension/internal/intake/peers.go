// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package intake

import (
	"math"
	"strconv"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// peerPrefix is the prefix of the metrics of peers, which the receiver hot_units emits.
const peerPrefix = attr.Prefix + "peer."

// peerCounters and peerGauges map a key to the index of a peer's value. The
// key is the name of the metric. If the point has a direction or a limit,
// it is appended to the name.
var (
	peerCounters = map[string]int{
		"io transmit":               store.PeerSent,
		"io receive":                store.PeerReceived,
		"connects":                  store.PeerConnects,
		"connect_failures":          store.PeerConnectFailures,
		"segments":                  store.PeerSegments,
		"retransmits":               store.PeerRetransmits,
		"send_time receiver_window": store.PeerReceiverWindow,
		"send_time send_buffer":     store.PeerSendBuffer,
		"send_time network":         store.PeerPath,
	}
	peerGauges = map[string]int{
		"queue transmit": store.PeerSendQueue,
		"queue receive":  store.PeerReceiveQueue,
		"connections":    store.PeerConnections,
		"rtt":            store.PeerRTT,
		"rtt_variation":  store.PeerRTTVariation,
	}
)

// peers contains the reports about the peers of a resource, by hotprofile.unit.
type peers map[string]map[reportKey]store.PeerReport

type reportKey struct {
	store.PeerKey
	start, at pcommon.Timestamp
}

// add adds a point. The values of a peer are points of several metrics.
func (p peers) add(metric string, point pmetric.NumberDataPoint) {
	a := point.Attributes()
	unit, value := text(a, attr.Unit), valueOf(point)
	if unit == "" || math.IsNaN(value) {
		return
	}
	key := reportKey{store.PeerKey{
		Address: text(a, attr.PeerAddress), Direction: text(a, attr.PeerDirection), Transport: text(a, attr.Transport),
	}, point.StartTimestamp(), point.Timestamp()}
	port := text(a, attr.PeerPort)
	if port == "" {
		port = text(a, attr.LocalPort)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err == nil {
		key.Port = int(n)
	}
	of := p[unit]
	if of == nil {
		of = map[reportKey]store.PeerReport{}
		p[unit] = of
	}
	r, ok := of[key]
	if !ok {
		r = store.PeerReport{PeerKey: key.PeerKey, Start: key.start.AsTime(), At: key.at.AsTime(), Counters: map[int]float64{}, Gauges: map[int]float64{}}
		r.PeerName = store.PeerName{Service: text(a, attr.PeerService), Name: text(a, attr.PeerUnit)}
	}
	name := metric[len(peerPrefix):]
	for _, of := range []string{text(a, attr.IODirection), text(a, attr.PeerLimit)} {
		if of != "" {
			name += " " + of
		}
	}
	if i, ok := peerCounters[name]; ok {
		r.Counters[i] = value
	} else if i, ok := peerGauges[name]; ok {
		r.Gauges[i] = value
	} else {
		return
	}
	of[key] = r
}
