// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsreceiver

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
)

func TestPeersAreDataPoints(t *testing.T) {
	r := newRig(t)
	cfg, err := load(t, "metrics: {hotprofile.peer.queue: {enabled: false}}")
	require.NoError(t, err)
	m, err := newMetrics(r.set, cfg, consumertest.NewNop())
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Shutdown(t.Context())) }()
	at, later := time.Unix(1000, 0), time.Unix(1007, 0)
	md := m.metrics([]hotunitsextension.UnitReadings{{Unit: "4f1c", Time: time.Unix(1010, 0), Peers: []hotunitsextension.PeerReading{
		{
			Address: netip.MustParseAddr("10.1.2.3"), Outbound: true, Port: 5432, Transport: "tcp", Unit: "77aa", Service: "db", Start: at,
			Sent: 1000, Received: 2000, Connects: 3, ConnectFailures: 4, Segments: 50, Retransmits: 5, Connections: 6,
			SendQueue: 7, ReceiveQueue: 8, ReceiverWindow: time.Second, SendBuffer: 2 * time.Second, Network: 3 * time.Second,
			RTT: 20 * time.Millisecond, RTTVariation: 5 * time.Millisecond, HasRTT: true,
		},
		{Start: at, Sent: 9},
		{Address: netip.MustParseAddr("fd00::1"), Port: 8080, Transport: "udp", Start: later, Connections: 1},
	}}})
	const db = "map[hotprofile.peer.direction:outbound hotprofile.peer.unit:77aa hotprofile.unit:4f1c network.peer.address:10.1.2.3 network.peer.port:5432 network.transport:tcp network.type:ipv4 service.peer.name:db]"
	const client = "map[hotprofile.peer.direction:inbound hotprofile.unit:4f1c network.local.port:8080 network.peer.address:fd00::1 network.transport:udp network.type:ipv6]"
	const others = "map[hotprofile.unit:4f1c]"
	require.Equal(t, []string{
		"connect_failures 1000 " + db + " 4", "connect_failures 1000 " + others + " 0", "connect_failures 1007 " + client + " 0",
		"connections 1000 " + db + " 6", "connections 1000 " + others + " 0", "connections 1007 " + client + " 1",
		"connects 1000 " + db + " 3", "connects 1000 " + others + " 0", "connects 1007 " + client + " 0",
		"io receive 1000 " + db + " 2000", "io receive 1000 " + others + " 0", "io receive 1007 " + client + " 0",
		"io transmit 1000 " + db + " 1000", "io transmit 1000 " + others + " 9", "io transmit 1007 " + client + " 0",
		"retransmits 1000 " + db + " 5", "retransmits 1000 " + others + " 0", "retransmits 1007 " + client + " 0",
		"rtt 1000 " + db + " 0.02", "rtt_variation 1000 " + db + " 0.005",
		"segments 1000 " + db + " 50", "segments 1000 " + others + " 0", "segments 1007 " + client + " 0",
		"send_time network 1000 " + db + " 3", "send_time network 1000 " + others + " 0", "send_time network 1007 " + client + " 0",
		"send_time receiver_window 1000 " + db + " 1", "send_time receiver_window 1000 " + others + " 0", "send_time receiver_window 1007 " + client + " 0",
		"send_time send_buffer 1000 " + db + " 2", "send_time send_buffer 1000 " + others + " 0", "send_time send_buffer 1007 " + client + " 0",
	}, peerPoints(t, md))
}

// peerPoints returns the sorted data points of peers in the form
// "name start attributes value".
func peerPoints(t *testing.T, md pmetric.Metrics) (out []string) {
	t.Helper()
	for _, rm := range md.ResourceMetrics().All() {
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			var points pmetric.NumberDataPointSlice
			if m.Type() == pmetric.MetricTypeSum {
				require.True(t, m.Sum().IsMonotonic())
				require.Equal(t, pmetric.AggregationTemporalityCumulative, m.Sum().AggregationTemporality())
				points = m.Sum().DataPoints()
			} else {
				points = m.Gauge().DataPoints()
			}
			for _, p := range points.All() {
				name := strings.TrimPrefix(m.Name(), "hotprofile.peer.")
				for _, key := range []string{"network.io.direction", "hotprofile.peer.limit"} {
					if v, ok := p.Attributes().Get(key); ok {
						name += " " + v.Str()
						p.Attributes().Remove(key)
					}
				}
				value := p.DoubleValue()
				if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
					value = float64(p.IntValue())
				}
				require.EqualValues(t, 1010, p.Timestamp().AsTime().Unix())
				out = append(out, fmt.Sprint(name, " ", p.StartTimestamp().AsTime().Unix(), " ", p.Attributes().AsRaw(), " ", value))
			}
		}
	}
	slices.Sort(out)
	return out
}
