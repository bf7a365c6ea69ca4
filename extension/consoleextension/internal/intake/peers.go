// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package intake

import (
	"cmp"
	"math"
	"strconv"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// peerPrefix is the prefix of the metrics of peers, which the receiver hot_units emits.
const peerPrefix = attr.Prefix + "peer."

// peerValue identifies a value of a peer in the store.
type peerValue struct {
	index int
	gauge bool
}

// peerValues maps a key to a peer's value. The key is the name of the metric, followed by
// the direction or the limit of the point, if any.
var peerValues = map[string]peerValue{
	"io transmit":               {store.PeerSent, false},
	"io receive":                {store.PeerReceived, false},
	"connects":                  {store.PeerConnects, false},
	"connect_failures":          {store.PeerConnectFailures, false},
	"segments":                  {store.PeerSegments, false},
	"retransmits":               {store.PeerRetransmits, false},
	"send_time receiver_window": {store.PeerReceiverWindow, false},
	"send_time send_buffer":     {store.PeerSendBuffer, false},
	"send_time network":         {store.PeerPath, false},
	"queue transmit":            {store.PeerSendQueue, true},
	"queue receive":             {store.PeerReceiveQueue, true},
	"connections":               {store.PeerConnections, true},
	"rtt":                       {store.PeerRTT, true},
	"rtt_variation":             {store.PeerRTTVariation, true},
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
	of, known := peerValues[name]
	if unit == "" || math.IsNaN(value) || !known {
		return
	}
	r := store.PeerReport{
		PeerKey:  store.PeerKey{Address: text(a, attr.PeerAddress), Direction: text(a, attr.PeerDirection), Transport: text(a, attr.Transport)},
		PeerName: store.PeerName{Service: text(a, attr.PeerService), Name: text(a, attr.PeerUnit)},
		Start:    point.StartTimestamp().AsTime(), At: point.Timestamp().AsTime(),
		Index: of.index, Gauge: of.gauge, Value: value,
	}
	port := cmp.Or(text(a, attr.PeerPort), text(a, attr.LocalPort))
	if n, err := strconv.ParseUint(port, 10, 16); err == nil {
		r.Port = int(n)
	}
	p[unit] = append(p[unit], r)
}
