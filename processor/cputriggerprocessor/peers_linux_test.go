// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadata"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// hotUnitsHost is a host with the extension hot_units.
type hotUnitsHost struct{ *hotunitsextension.HotUnits }

func (h hotUnitsHost) GetExtensions() map[component.ID]component.Component {
	return map[component.ID]component.Component{component.MustNewID("hot_units"): h.HotUnits}
}

// TestAUnitThatWaitsForTheNetwork checks that a slow network link that loses packets
// opens the gate of the unit behind the link. The unit's readings must contain the peer.
func TestAUnitThatWaitsForTheNetwork(t *testing.T) {
	mine, theirs := hosttest.NewNetwork(t), hosttest.NewNetwork(t)
	wire, _, far := hosttest.NewWire(t, mine, theirs)
	c := hosttest.NewCgroup(t, "hotprofile-network")
	// The unit's only process sleeps, so the gate does not open because of a wait for a
	// CPU. All connections in the process's network namespace belong to the unit,
	// including the connections of this test.
	begin(t, c.Command("ip", "netns", "exec", mine.Name, "sleep", "1000"))

	cfg, err := load(t, `
pre_trigger: 0s
min_age: 0s
collection_interval: 200ms
evaluation_interval: 200ms
policies:
  - {name: retransmits, match: {cgroup: "`+c.Path+`"}, any_of: [{monitor: tcp_retransmits, threshold: 1, average_over: 2s}]}
  - {name: slow, match: {cgroup: "`+c.Path+`"}, any_of: [{monitor: tcp_rtt, threshold: 15, period: 5s, count: 2}]}
  - {name: failures, match: {cgroup: "`+c.Path+`"}, any_of: [{monitor: tcp_connect_failures, threshold: 0.1, average_over: 5s}]}
`)
	require.NoError(t, err)
	core, logs := observer.New(zapcore.InfoLevel)
	telemetry := componenttest.NewTelemetry()
	set := processor.Settings{ID: processortest.NewNopSettings(metadata.Type).ID, TelemetrySettings: telemetry.NewTelemetrySettings()}
	set.Logger = zap.New(core)
	r := &running{t: t, sink: &consumertest.ProfilesSink{}, logs: logs}
	r.p, err = newProcessor(set, cfg, r.sink)
	require.NoError(t, err)
	hot := hotUnits(t)
	require.NoError(t, r.p.Start(t.Context(), hotUnitsHost{hot}))
	t.Cleanup(func() {
		require.NoError(t, r.p.Shutdown(context.Background()))
		require.NoError(t, telemetry.Shutdown(context.Background()))
	})
	readings := func() (of hotunitsextension.UnitReadings) {
		all, _ := hot.Readings(1000)
		for _, u := range all {
			if u.Unit == c.Path {
				of = u
			}
		}
		return of
	}
	require.Eventually(t, func() bool { return readings().Unit != "" }, eventually, 10*time.Millisecond)

	wire.SetDelay(10 * time.Millisecond)
	wire.LoseEvery(20)
	var l net.Listener
	theirs.Do(t, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(far.V4, 0).String())
		return err
	})
	defer l.Close()
	var conn net.Conn
	mine.Do(t, func() (err error) {
		conn, err = net.Dial("tcp", l.Addr().String())
		return err
	})
	defer conn.Close()
	server, err := l.Accept()
	require.NoError(t, err)
	defer server.Close()
	go func() { _, _ = io.Copy(io.Discard, server) }()
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	go func() {
		for buf := make([]byte, 64<<10); ; {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := conn.Write(buf); err != nil {
				return
			}
		}
	}()
	refused := netip.AddrPortFrom(far.V4, 1).String()
	var opened []string
	require.Eventually(t, func() bool {
		mine.Do(t, func() error {
			if c, err := net.Dial("tcp", refused); err == nil {
				_ = c.Close()
			}
			return nil
		})
		opened = nil
		for _, e := range r.logs.FilterMessage("gate opened").All() {
			opened = append(opened, e.ContextMap()["policy"].(string)+" "+e.ContextMap()["monitor"].(string))
		}
		return len(opened) == 3
	}, eventually, 100*time.Millisecond, "%v", logs)
	require.ElementsMatch(t, []string{"retransmits tcp_retransmits", "slow tcp_rtt", "failures tcp_connect_failures"}, opened)

	peers := readings().Peers
	require.Len(t, peers, 2)
	busiest, closed := peers[0], peers[1]
	require.Equal(t, l.Addr().String(), netip.AddrPortFrom(busiest.Address, busiest.Port).String())
	require.True(t, busiest.Outbound)
	require.Positive(t, busiest.Retransmits)
	require.Positive(t, busiest.SendQueue)
	require.Greater(t, busiest.RTT, 15*time.Millisecond)
	require.Equal(t, refused, netip.AddrPortFrom(closed.Address, closed.Port).String())
	require.Positive(t, closed.ConnectFailures)
	require.Zero(t, closed.Connects)
}

func TestPeersCanBeTurnedOff(t *testing.T) {
	r := start(t, quick(time.Minute)+"peers: {enabled: false}\n")
	require.Nil(t, r.p.peers.Load())
	require.Empty(t, r.p.peers.Load().Peers("unit"))
}
