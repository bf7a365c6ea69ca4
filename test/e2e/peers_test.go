// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestPeersOfAUnit runs a unit that responds slowly because of its
// network, with an idle CPU. The unit's gate must open. The metrics
// must name the peer and the traffic with the peer.
func TestPeersOfAUnit(t *testing.T) {
	t.Parallel()
	mine, theirs := hosttest.NewNetwork(t), hosttest.NewNetwork(t)
	wire, _, far := hosttest.NewWire(t, mine, theirs)
	wire.SetDelay(20 * time.Millisecond)
	wire.LoseEvery(100)
	unit := newCgroup(t, "networked")
	// All connections of this network namespace belong to the unit, because the namespace
	// contains no other process.
	require.NoError(t, unit.Command("ip", "netns", "exec", mine.Name, "sleep", "1000").Start())

	dir := t.TempDir()
	file := filepath.Join(dir, "metrics.json")
	c := startCollector(t, "collector", fmt.Sprintf(`
extensions:
  hot_units:
receivers:
  cpu_profiler: {export_interval: 1s}
  hot_units: {collection_interval: 1s}
processors:
  cpu_trigger:
    evaluation_interval: 500ms
    min_age: 0
    policies:
      - {name: network, match: {cgroup: %q}, any_of: [{monitor: tcp_rtt, threshold: 30, average_over: 3s}], duration: 10m}
exporters:
  pprof: {directory: %q}
  file: {path: %q, format: json, flush_interval: 200ms}
service:
  extensions: [hot_units]
  telemetry: {logs: {encoding: json}, metrics: {level: none}}
  pipelines:
    profiles: {receivers: [cpu_profiler], processors: [cpu_trigger], exporters: [pprof]}
    metrics: {receivers: [hot_units], exporters: [file]}
`, unit.Path, filepath.Join(dir, "profiles"), file))
	c.wait(startTimeout, "Everything is ready. Begin running and processing data.", nil)
	peers := func() map[string]float64 { return peersIn(t, file, unit.Path) }
	// Traffic counts only after the collector has begun to follow the unit's connections.
	// The first connection is used to wait until this has happened.
	var l net.Listener
	theirs.Do(t, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(far.V4, 0).String())
		return err
	})
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn) }() // sends all data back
		}
	}()
	dial := func() (conn net.Conn) {
		mine.Do(t, func() (err error) {
			conn, err = net.Dial("tcp", l.Addr().String())
			return err
		})
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	dial()
	at := l.Addr().String() + " outbound"
	require.Eventually(t, func() bool { return peers()[at+" connections"] == 1 }, startTimeout, 100*time.Millisecond)

	conn, sent := dial(), 0
	buf := make([]byte, 10_000)
	exchange := func() {
		_, err := conn.Write(buf)
		require.NoError(t, err)
		_, err = io.ReadFull(conn, buf)
		require.NoError(t, err)
		sent += len(buf)
	}
	for end := time.Now().Add(startTimeout); len(c.lines("gate opened")) == 0 && time.Now().Before(end); {
		exchange()
	}
	opened := c.wait(startTimeout, "gate opened", of(unit.Path))
	require.Equal(t, "tcp_rtt", opened.str("monitor"))
	for range 100 {
		exchange()
	}
	near := func(got float64) bool { return math.Abs(got-float64(sent)) <= float64(sent)/100 }
	require.Eventually(t, func() bool {
		p := peers()
		return near(p[at+" io transmit"]) && near(p[at+" io receive"])
	}, startTimeout, 100*time.Millisecond, "%d bytes each way: %v", sent, peers())
	p := peers()
	// The first connection counts only if the unit was
	// followed before the connection was made.
	require.Contains(t, []float64{1, 2}, p[at+" connects"], "%v", p)
	require.EqualValues(t, 2, p[at+" connections"], "%v", p)
	require.Greater(t, p[at+" rtt"], 0.03, "%v", p)
	require.Positive(t, p[at+" retransmits"], "%v", p)
	require.Positive(t, p[at+" segments"], "%v", p)
	require.Positive(t, p[at+" send_time network"], "%v", p)
	c.stop()
}

// peersIn returns the last values of the metrics of a unit's peers. A key consists of the
// address, the direction, the metric, and the other attributes of the point.
func peersIn(t *testing.T, file, unit string) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	jsonLines(t, file, func(line []byte) error {
		md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(line)
		if err != nil {
			return nil //nolint:nilerr // the last line is being written
		}
		for _, rm := range md.ResourceMetrics().All() {
			for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
				var points pmetric.NumberDataPointSlice
				if m.Type() == pmetric.MetricTypeSum {
					points = m.Sum().DataPoints()
				} else {
					points = m.Gauge().DataPoints()
				}
				for _, p := range points.All() {
					get := func(key string) string {
						v, _ := p.Attributes().Get(key)
						return v.AsString()
					}
					address, ok := p.Attributes().Get("network.peer.address")
					if !ok || get("hotprofile.unit") != unit {
						continue
					}
					name := net.JoinHostPort(address.Str(), get("network.peer.port")) + " " + get("hotprofile.peer.direction") + " " + strings.TrimPrefix(m.Name(), "hotprofile.peer.")
					for _, key := range []string{"network.io.direction", "hotprofile.peer.limit"} {
						if v, ok := p.Attributes().Get(key); ok {
							name += " " + v.Str()
						}
					}
					if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
						out[name] = float64(p.IntValue())
					} else {
						out[name] = p.DoubleValue()
					}
				}
			}
		}
		return nil
	})
	return out
}
