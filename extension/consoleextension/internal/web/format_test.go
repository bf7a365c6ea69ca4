// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"html/template"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
)

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 93.456: "93.5", 80: "80", 1.005: "1", 2.345: "2.35", 0.1234: "0.123", 0.00012345: "0.00012",
		123.4: "123", 1234567: "1,234,567", -1234: "-1,234", 999.6: "1,000", 1e18: "1e+18", math.Inf(1): "+∞",
	} {
		require.Equal(t, want, number(v), "%g", v)
	}
	require.Equal(t, "–", number(math.NaN()))
	require.Equal(t, "93.5\u00a0%", measure("cpu_utilization", 93.5))
	require.Equal(t, "184\u00a0ms", measure("http_response_time", 184))
	require.Equal(t, "2\u00a0cores", measure("cpu_usage", 2))
	require.Equal(t, "7", measure("queue.length", 7), "the unit of a user's metric is not known")
	require.Equal(t, "–", measure("cpu_usage", math.NaN()))
	require.Equal(t, "-100", count(-100))
	require.Equal(t, "1,000", count(int64(1000)))
	require.Equal(t, "1 gate", plural(1, "gate", "gates"))
	require.Equal(t, "0 gates", plural(0, "gate", "gates"))
	require.Equal(t, "1.18 MiB", formatBytes(1_234_567))
	require.Equal(t, "0 B", formatBytes(0))
}

func TestDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 s", 30 * time.Second: "30 s", 90 * time.Second: "1 min 30 s", 48 * time.Hour: "48 h", 73 * time.Hour: "3 d 1 h",
		1500 * time.Millisecond: "1.5 s", 250 * time.Microsecond: "250 µs", 99: "99 ns", -time.Minute: "-1 min", 20 * time.Millisecond: "20 ms",
	} {
		require.Equal(t, want, formatDuration(d), "%d", d)
	}
}

func TestTimes(t *testing.T) {
	require.Equal(t, template.HTML(`<time datetime="2026-01-02T15:04:05.000Z">2026-01-02 15:04:05 UTC</time>`), formatTime(testNow.In(time.FixedZone("east", 3600))))
	require.Equal(t, template.HTML("–"), formatTime(time.Time{}))
	s := &Server{Options: Options{Now: func() time.Time { return testNow }}}
	for d, want := range map[time.Duration]string{
		0: "just now", -3 * time.Second: "3 s ago", -90 * time.Minute: "1 h 30 min ago", -30 * time.Hour: "30 h ago",
		-72 * time.Hour: "3 d ago", time.Minute: "in 1 min",
	} {
		require.Contains(t, s.ago(testNow.Add(d)), ">"+want+"<", "%s", d)
	}
}

// TestTextsOfOthers checks that strings from other programs are truncated and escaped, and
// that they do not change the order of the surrounding text.
func TestTextsOfOthers(t *testing.T) {
	require.Equal(t, template.HTML(`<bdi>&lt;script&gt;</bdi>`), text(20, "<script>"))
	require.Equal(t, template.HTML(`<bdi title="&#34;&gt;&lt;img onerror=x">&#34;&gt;…</bdi>`), text(2, `"><img onerror=x`))
	require.Equal(t, `a\u202eb\u2066c\u200fd`, cutText(100, "a\u202eb\u2066c\u200fd"))
	require.Equal(t, `a\x00b c`, cutText(100, "a\x00b\nc"))
	require.Equal(t, "a\uFFFDb", cutText(100, "a\xffb"))
	require.Equal(t, "日本…", cutText(2, "日本語"))
	require.Equal(t, "日本語", cutText(3, "日本語"))
	require.Less(t, len(text(40, strings.Repeat("x", 2<<20))), 1300)
	require.Less(t, len(text(40, strings.Repeat("\u202e", 1<<20))), 12_000)
}

func TestNearness(t *testing.T) {
	require.InDelta(t, 1.25, nearness(store.Reading{Value: 100, Threshold: 80}), 1e-9)
	require.InDelta(t, -1, nearness(store.Reading{Value: math.NaN(), Threshold: 80}), 0)
	require.Equal(t, math.Inf(1), nearness(store.Reading{Value: 0.1}), "over a threshold of 0")
	require.Zero(t, nearness(store.Reading{}))
}

func TestNamesOfUnits(t *testing.T) {
	for _, test := range []struct {
		unit        store.Unit
		name, place string
	}{
		{store.Unit{Name: strings.Repeat("0a", 32)}, "0a0a0a0a0a0a", "container 0a0a0a0a0a0a"},
		{store.Unit{Name: "/system.slice/nginx.service"}, "nginx.service", "/system.slice/nginx.service"},
		{store.Unit{Name: "16212:2026-11-22T15:41:06.17Z"}, "process 16212", "process 16212"},
		{store.Unit{Name: "/"}, "/", "/"},
		{store.Unit{}, "/", ""},
		{
			store.Unit{Name: "x", Resource: map[string]string{"service.name": "cart", "k8s.namespace.name": "shop", "k8s.pod.name": "cart-1", "k8s.container.name": "cart"}},
			"cart", "shop/cart-1",
		},
		{
			store.Unit{Name: "x", Resource: map[string]string{"service.name": "cart", "k8s.pod.name": "cart-1", "k8s.container.name": "proxy"}},
			"cart", "cart-1 proxy",
		},
		{store.Unit{Name: "/a/b", Resource: map[string]string{"service.name": "unknown_service:b", "process.executable.name": "b.exe"}}, "b.exe", "/a/b"},
	} {
		require.Equal(t, test.name, unitName(test.unit))
		require.Equal(t, test.place, unitPlace(test.unit))
	}
}

func TestReasons(t *testing.T) {
	for want, o := range map[string]store.Opening{
		"cpu_usage 1.5\u00a0cores, threshold 1\u00a0cores, 30s average": {Kind: "hot", Monitor: "cpu_usage", Value: 1.5, Threshold: 1, Window: "30s average"},
		"opened by hand":              {Kind: "manual", Policy: "manual", Monitor: "manual"},
		"opened by the alert HighCPU": {Kind: "alert", Policy: "HighCPU", Monitor: "HighCPU"},
		"opened by the alert":         {Kind: "alert"},
		"baseline":                    {Kind: "baseline"},
		"not known":                   {},
	} {
		require.Equal(t, want, reason(o))
	}
}
