// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKnownMessagesAreSentences(t *testing.T) {
	var out bytes.Buffer
	l := &lines{to: &out}
	log := `{"level":"info","ts":"2026-11-22T05:55:59.000Z","msg":"Everything is ready. Begin running and processing data."}
{"level":"info","ts":"2026-11-22T05:55:59.000Z","msg":"Extension is starting...","otelcol.component.id":"console"}
{"level":"info","ts":"2026-11-22T05:55:59.000Z","msg":"console at http://localhost:4042","otelcol.component.id":"console","directory":"/tmp/console"}
{"level":"info","ts":"2026-11-22T05:55:59.000Z","msg":"sampling started","otelcol.component.id":"cpu_profiler","what":"the whole host, 2 CPUs","frequency":97,"not_sampled":[],"why":""}
{"level":"info","ts":"2026-11-22T05:55:59.000Z","msg":"sampling started","what":"own processes","frequency":48.5,"not_sampled":["kernel stacks"],"why":"no CAP_PERFMON"}
{"level":"info","ts":"2026-11-22T05:56:06.000Z","msg":"gate opened","unit":"/a","service":"demo-hot","monitor":"cpu_utilization","value":80.087,"threshold":80,"window":"5s average"}
{"level":"info","ts":"2026-11-22T05:56:06.000Z","msg":"gate opened","unit":"/a","service":"","monitor":"cpu_usage","value":0.97,"threshold":0.8,"window":"5s average"}
{"level":"info","ts":"2026-11-22T05:56:15.000Z","msg":"gate closed","unit":"/a","service":"demo-hot","why":"duration","samples":1057,"bytes":25425}
{"level":"info","ts":"2026-11-22T05:56:16.000Z","msg":"gate opened","unit":"/a","service":"demo-hot","monitor":"cpu_utilization","value":5,"threshold":1000,"window":"5s average","phase":"baseline"}
{"level":"info","ts":"2026-11-22T05:56:17.000Z","msg":"gate closed","unit":"/a","service":"demo-hot","why":"duration","samples":10,"bytes":254,"phase":"baseline"}
{"level":"info","ts":"2026-11-22T05:56:20.000Z","msg":"profile written","file":"profiles/a.pb.gz","samples":1222,"hottest":["main.f 73.8%","main.g 25.6%"]}
{"level":"info","ts":"2026-11-22T05:56:20.000Z","msg":"profile written","file":"profiles/b.pb.gz","samples":1,"hottest":["main.f 100.0%"]}
{"level":"warn","ts":"2026-11-22T05:56:20.000Z","msg":"something new","otelcol.component.id":"pprof","otelcol.signal":"profiles","left":3,"error":""}
Error: not JSON
`
	for _, part := range regexp.MustCompile(`(?s).{1,100}`).FindAllString(log, -1) { // the log arrives in parts
		n, err := l.Write([]byte(part))
		require.NoError(t, err)
		require.Equal(t, len(part), n)
	}
	require.Equal(t, strings.Join([]string{
		"browser          console at http://localhost:4042",
		"sampling         the whole host, 2 CPUs, at 97 Hz",
		"sampling         own processes, at 48.5 Hz; not sampled: kernel stacks (no CAP_PERFMON)",
		"gate opened      demo-hot used 80.1 % of its CPU limit (5s average, threshold 80)",
		"gate opened      /a used 0.97 CPU cores (5s average, threshold 0.8)",
		"gate closed      demo-hot, by duration: 1057 samples in 25425 bytes",
		"baseline         demo-hot in a cool time, to compare with",
		"profile written  profiles/a.pb.gz: 1222 samples; hottest main.f 73.8%, main.g 25.6%",
		"type next        go tool pprof -top profiles/a.pb.gz   (or -http=: for a flame graph)",
		"profile written  profiles/b.pb.gz: 1 samples; hottest main.f 100.0%",
		"warn             something new  left=3",
		"Error: not JSON",
		"",
	}, "\n"), regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d  `).ReplaceAllString(out.String(), ""))
}
