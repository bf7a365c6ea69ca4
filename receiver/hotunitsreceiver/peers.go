// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsreceiver

import (
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/receiver/hotunitsreceiver/internal/metadata"
)

// emitPeers adds the data points of a unit's peers. The builder sets one start
// for all points of a resource. Adjacent peers therefore share a resource only
// if they have the same start.
func (m *metrics) emitPeers(r hotunitsextension.UnitReadings, now pcommon.Timestamp, resource pcommon.Resource) {
	for i, p := range r.Peers {
		m.recordPeer(r.Unit, p, now)
		if i+1 == len(r.Peers) || !r.Peers[i+1].Start.Equal(p.Start) {
			m.builder.EmitForResource(metadata.WithResource(resource), metadata.WithStartTimeOverride(pcommon.NewTimestampFromTime(p.Start)))
		}
	}
}

func (m *metrics) recordPeer(unit string, p hotunitsextension.PeerReading, now pcommon.Timestamp) {
	b, of := m.builder, peerAttributes(p)
	b.RecordHotprofilePeerIoDataPoint(now, p.Sent, unit, metadata.AttributeIoDirectionTransmit, of...)
	b.RecordHotprofilePeerIoDataPoint(now, p.Received, unit, metadata.AttributeIoDirectionReceive, of...)
	b.RecordHotprofilePeerConnectionsDataPoint(now, p.Connections, unit, of...)
	b.RecordHotprofilePeerConnectsDataPoint(now, p.Connects, unit, of...)
	b.RecordHotprofilePeerConnectFailuresDataPoint(now, p.ConnectFailures, unit, of...)
	b.RecordHotprofilePeerSegmentsDataPoint(now, p.Segments, unit, of...)
	b.RecordHotprofilePeerRetransmitsDataPoint(now, p.Retransmits, unit, of...)
	b.RecordHotprofilePeerSendTimeDataPoint(now, p.ReceiverWindow.Seconds(), unit, metadata.AttributeLimitReceiverWindow, of...)
	b.RecordHotprofilePeerSendTimeDataPoint(now, p.SendBuffer.Seconds(), unit, metadata.AttributeLimitSendBuffer, of...)
	b.RecordHotprofilePeerSendTimeDataPoint(now, p.Network.Seconds(), unit, metadata.AttributeLimitNetwork, of...)
	b.RecordHotprofilePeerQueueDataPoint(now, p.SendQueue, unit, metadata.AttributeIoDirectionTransmit, of...)
	b.RecordHotprofilePeerQueueDataPoint(now, p.ReceiveQueue, unit, metadata.AttributeIoDirectionReceive, of...)
	if p.HasRTT {
		b.RecordHotprofilePeerRttDataPoint(now, p.RTT.Seconds(), unit, of...)
		b.RecordHotprofilePeerRttVariationDataPoint(now, p.RTTVariation.Seconds(), unit, of...)
	}
}

// peerAttributes returns the attributes that identify a peer. The sum of all other peers
// has no attributes.
func peerAttributes(p hotunitsextension.PeerReading) []metadata.MetricAttributeOption {
	if !p.Address.IsValid() {
		return nil
	}
	direction, port := "inbound", metadata.WithLocalPortMetricAttribute(int64(p.Port))
	if p.Outbound {
		direction, port = "outbound", metadata.WithPeerPortMetricAttribute(int64(p.Port))
	}
	kind := "ipv6"
	if p.Address.Is4() {
		kind = "ipv4"
	}
	of := []metadata.MetricAttributeOption{
		metadata.WithDirectionMetricAttribute(direction), metadata.WithTransportMetricAttribute(p.Transport),
		metadata.WithNetworkTypeMetricAttribute(kind), metadata.WithPeerAddressMetricAttribute(p.Address.String()), port,
	}
	if p.Unit != "" {
		of = append(of, metadata.WithPeerUnitMetricAttribute(p.Unit))
	}
	if p.Service != "" {
		of = append(of, metadata.WithPeerServiceMetricAttribute(p.Service))
	}
	return of
}
