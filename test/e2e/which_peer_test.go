// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/perfevent/tracefs"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// TestWhichPeerAndWhichCodeMakeAServiceSlow runs a service that calls two
// peers and is otherwise idle. Then the network path to one peer becomes
// slow. The console's page of the opening must name the slow peer, the
// function that waits for this peer, and the time of the opening.
func TestWhichPeerAndWhichCodeMakeAServiceSlow(t *testing.T) {
	t.Parallel()
	if err := perfevent.Probe().Kernel; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	hosttest.Tool(t, "unshare")
	kernel, err := tracefs.Find(hosttest.Tracefs(t))
	require.NoError(t, err)
	_, _, err = kernel.Tracepoint("sock:sock_send_length")
	tellsBytes := err == nil // since Linux 6.3

	const port, threshold, roundTrip = 4000, 20, 80 * time.Millisecond
	front, slow, fast := hosttest.NewNetwork(t), hosttest.NewNetwork(t), hosttest.NewNetwork(t)
	wire, _, toSlow := hosttest.NewWire(t, front, slow)
	_, toFast := hosttest.Link(t, front, fast)
	slowAt, fastAt := netip.AddrPortFrom(toSlow.V4, port).String(), netip.AddrPortFrom(toFast.V4, port).String()
	unit := newCgroup(t, "asking")
	inNetwork := func(of *hosttest.Cgroup, in *hosttest.Network, service string, args ...string) {
		startLoad(t, of.Command("ip", append([]string{"netns", "exec", in.Name, loadBinary}, args...)...), service)
	}
	for at, of := range map[string]*hosttest.Network{slowAt: slow, fastAt: fast} {
		name := map[*hosttest.Network]string{slow: "slow-answers", fast: "fast-answers"}[of]
		inNetwork(newCgroup(t, name), of, name, "-answer", at)
		require.Eventually(t, func() (up bool) {
			front.Do(t, func() error {
				conn, err := net.Dial("tcp", at)
				if err == nil {
					up = true
					return conn.Close()
				}
				return nil
			})
			return up
		}, startTimeout, 100*time.Millisecond)
	}

	dir, console := t.TempDir(), freePort(t)
	c := startCollector(t, "collector", fmt.Sprintf(`
extensions:
  hot_units:
  console: {endpoint: "localhost:%[1]d", directory: %[2]q}
receivers:
  cpu_profiler: {export_interval: 1s, off_cpu: {}, network: {}}
  hot_units: {collection_interval: 1s}
processors:
  cpu_trigger:
    evaluation_interval: 500ms
    min_age: 0
    policies:
      - {name: network, match: {cgroup: %[3]q}, any_of: [{monitor: tcp_rtt, threshold: %[4]d, average_over: 3s}], duration: 10m}
      # The others are units too, so that the console has pages of them.
      - {name: cpu, match: {cgroup: %[5]q}, any_of: [{monitor: cpu_usage, threshold: 1000}]}
exporters:
  console:
service:
  extensions: [hot_units, console]
  telemetry: {logs: {encoding: json}, metrics: {level: none}}
  pipelines:
    profiles: {receivers: [cpu_profiler], processors: [cpu_trigger], exporters: [console]}
    logs: {receivers: [hot_units], exporters: [console]}
    metrics: {receivers: [hot_units], exporters: [console]}
`, console, filepath.Join(dir, "console"), unit.Path, threshold, ofThisTest(t)), withTracefs)
	p := pages{t, fmt.Sprintf("http://localhost:%d", console)}
	c.wait(startTimeout, "console at "+p.base, nil)
	inNetwork(unit, front, "front", "-ask", slowAt+","+fastAt)

	// While both peers respond quickly, neither peer is marked.
	page := p.wait("/units?all=1", `href="(/units/[0-9a-f]{16})"><bdi>front`)[1]
	p.wait(page, `(?s)class="peers-table".*<bdi>[^<]*(?:slow-answers.*fast-answers|fast-answers.*slow-answers)`)
	require.NotContains(t, p.get(page), " there and back")
	require.Empty(t, c.lines("gate opened"))

	changed := time.Now()
	wire.SetDelay(roundTrip / 2)
	opened := c.wait(startTimeout, "gate opened", of(unit.Path))
	opening := "/openings/" + opened.str("trigger_id")
	// The page of the opening shows the time and the reason.
	since := p.wait(opening, `opened the gate of <bdi>front</bdi> at <time datetime="([^"]*)"`)[1]
	triggered, err := time.Parse(time.RFC3339, since)
	require.NoError(t, err)
	require.WithinRange(t, triggered, changed.Truncate(time.Second), time.Now())
	p.wait(opening, `because <strong><bdi>tcp_rtt</bdi></strong> was <strong class="hot">\d+(?:\.\d)?.ms</strong>, over the threshold of <strong>20.ms`)
	// Only the slow peer is marked. Its name is a link to its own page.
	marked := `<a href="#peers"><bdi>[^<]*slow-answers[^<]*</bdi></a> ` + regexp.QuoteMeta(`(<bdi>`+slowAt+`</bdi>) <strong class="hot">slow: `) + `\d+(?:\.\d)? ms there and back`
	p.wait(opening, marked)
	require.NotRegexp(t, `fast-answers[^<]*</bdi></a> \(<bdi>[^<]*</bdi>\) <strong class="hot">slow`, p.get(opening))
	theirs := p.wait(opening, `<th scope="row"><a href="(/units/[0-9a-f]{16})"><bdi>[^<]*slow-answers`)[1]
	p.wait(theirs, `<h1><bdi>[^<]*slow-answers`)

	// The page shows the code that waits for the network and the code that sends.
	waits := func() (first, second int64) {
		resp, err := http.Get(p.base + opening + "/profile.pb.gz?type=off_cpu")
		require.NoError(t, err)
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return 0, 0
		}
		prof, err := pprof.Parse(resp.Body)
		require.NoError(t, err)
		for _, s := range prof.Sample {
			if strings.Join(s.Label["hotprofile.wait"], "") != "network" {
				continue
			}
			for _, l := range s.Location {
				for _, line := range l.Line {
					switch line.Function.Name {
					case "main.askFirst":
						first += s.Value[0]
					case "main.askSecond":
						second += s.Value[0]
					}
				}
			}
		}
		return first, second
	}
	require.Eventually(t, func() bool {
		first, second := waits()
		t.Logf("waits for the network: %v for the slow one, %v for the other", time.Duration(first), time.Duration(second))
		return first > int64(time.Second) && first > 3*second
	}, startTimeout, time.Second)
	p.wait(opening+"?type=off_cpu&wait=network", `(?s)<strong>[^<]*</strong> of [^<]*, waiting for <bdi>network.*data-function="main.askFirst"`)
	if tellsBytes {
		p.wait(opening+"/flame.json?type=net_sent", `main\.askFirst`)
	}
	c.stop()
}
