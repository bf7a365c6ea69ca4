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

// peerPrefix is that of the metrics of peers, which the receiver hot_units emits.
const peerPrefix = attr.Prefix + "peer."

// peers are the reports of the peers of a resource, by hotprofile.unit.
type peers struct {
	resource map[string]string
	all      map[string]map[reportKey]store.PeerReport
}

type reportKey struct {
	store.PeerKey
	start, at pcommon.Timestamp
}

func newPeers(resource map[string]string) *peers {
	return &peers{resource: resource, all: map[string]map[reportKey]store.PeerReport{}}
}

// add adds a point. The values of a peer are points of several metrics.
func (p *peers) add(metric string, point pmetric.NumberDataPoint) {
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
	of := p.all[unit]
	if of == nil {
		of = map[reportKey]store.PeerReport{}
		p.all[unit] = of
	}
	r, ok := of[key]
	if !ok {
		r = store.NewPeerReport(key.PeerKey, key.start.AsTime(), key.at.AsTime())
		r.PeerName = store.PeerName{Service: text(a, attr.PeerService), Name: text(a, attr.PeerUnit)}
	}
	transmit := text(a, attr.IODirection) == "transmit"
	switch metric[len(peerPrefix):] {
	case "io":
		r.Counters[either(transmit, store.PeerSent, store.PeerReceived)] = value
	case "queue":
		r.Gauges[either(transmit, store.PeerSendQueue, store.PeerReceiveQueue)] = value
	case "connections":
		r.Gauges[store.PeerConnections] = value
	case "connects":
		r.Counters[store.PeerConnects] = value
	case "connect_failures":
		r.Counters[store.PeerConnectFailures] = value
	case "segments":
		r.Counters[store.PeerSegments] = value
	case "retransmits":
		r.Counters[store.PeerRetransmits] = value
	case "send_time":
		switch text(a, attr.PeerLimit) {
		case "receiver_window":
			r.Counters[store.PeerReceiverWindow] = value
		case "send_buffer":
			r.Counters[store.PeerSendBuffer] = value
		case "network":
			r.Counters[store.PeerPath] = value
		}
	case "rtt":
		r.Gauges[store.PeerRTT] = value
	case "rtt_variation":
		r.Gauges[store.PeerRTTVariation] = value
	default:
		return
	}
	of[key] = r
}

func either(first bool, a, b int) int {
	if first {
		return a
	}
	return b
}
