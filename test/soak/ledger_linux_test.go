// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// scraped contains the metrics of a run with 1000 events and 40 allocations. For each
// allocation that was passed on, the next component also counts the objects.
const scraped = `# HELP otelcol_cpu_profiler_samples Samples
# TYPE otelcol_cpu_profiler_samples counter
otelcol_cpu_profiler_samples{otel_scope_name="a",outcome="exported",sampler="on_cpu"} 700
otelcol_cpu_profiler_samples{otel_scope_name="a",outcome="exported",sampler="allocations"} 30
otelcol_cpu_profiler_samples{otel_scope_name="a",outcome="refused",sampler="allocations"} 10
otelcol_cpu_profiler_samples{otel_scope_name="a",outcome="refused",sampler="on_cpu"} 100
otelcol_cpu_profiler_samples{otel_scope_name="a",outcome="buffer_full",sampler="on_cpu"} 2e+02
otelcol_cpu_profiler_samples_lost 17
otelcol_receiver_accepted_profile_samples{receiver="cpu_profiler"} 760
otelcol_receiver_refused_profile_samples{receiver="cpu_profiler"} 120
otelcol_cpu_trigger_samples{outcome="passed"} 400
otelcol_cpu_trigger_samples{outcome="refused"} 110
otelcol_cpu_trigger_samples{outcome="gate_shut"} 300
otelcol_cpu_trigger_recorder_samples 70
otelcol_exporter_send_failed_profile_samples{error_permanent="true",error_type="InvalidArgument"} 5
otelcol_exporter_send_failed_profile_samples{error_permanent="false",error_type="Shutdown"} 3
`

func entryOf(t *testing.T, text string) entry {
	t.Helper()
	f, err := readPrometheus(strings.NewReader(text))
	require.NoError(t, err)
	e := newEntry("1. queue", false, f)
	e.killed = true
	return e
}

func TestARunThatAgreesHasNoFault(t *testing.T) {
	e := entryOf(t, scraped)
	require.Empty(t, e.check())
	require.EqualValues(t, 1040+40, e.in())
	require.EqualValues(t, 17, e.lost)
	require.EqualValues(t, 5, e.sendFailed)

	l := ledger{entries: []entry{e}, out: 390, rejected: 10}
	require.Empty(t, l.check())
	line, holds := l.equation()
	require.True(t, holds)
	require.Equal(t, "in 1080 = out 390 + held 0 + refused 110 + rejected 10 + buffer_full 200 + rate_limited 0 + evicted 0 + gate_shut 300"+
		" + over_budget 0 + dry_run 0 + filtered 0 + unmatched 0 + unreadable 0 + left_out 0 + shutdown 0 + killed 70", line)
}

func TestOneEventThatNobodyCountedIsAFault(t *testing.T) {
	for what, change := range map[string][2]string{
		"the processor lost one":           {`outcome="gate_shut"} 300`, `outcome="gate_shut"} 299`},
		"the recorder lost one":            {`recorder_samples 70`, `recorder_samples 69`},
		"the receiver did not count one":   {`outcome="exported",sampler="on_cpu"} 700`, `outcome="exported",sampler="on_cpu"} 699`},
		"the receiver lost one on the way": {`accepted_profile_samples{receiver="cpu_profiler"} 760`, `accepted_profile_samples{receiver="cpu_profiler"} 759`},
	} {
		t.Run(what, func(t *testing.T) {
			text := strings.Replace(scraped, change[0], change[1], 1)
			require.NotEqual(t, scraped, text)
			e := entryOf(t, text)
			require.NotEmpty(t, e.check())
		})
	}
	t.Run("the queue lost one", func(t *testing.T) {
		l := ledger{entries: []entry{entryOf(t, scraped)}, out: 389, rejected: 10}
		require.NotEmpty(t, l.check())
		line, holds := l.equation()
		require.False(t, holds)
		require.Contains(t, line, "in 1080 ≠ (by -1) out 389 ")
	})
	t.Run("a run that was not killed still holds some", func(t *testing.T) {
		e := entryOf(t, scraped)
		e.killed = false
		require.NotEmpty(t, e.check())
	})
}

func TestWithoutAQueueTheBackendHasWhatPassed(t *testing.T) {
	const text = `otelcol_cpu_profiler_samples{outcome="exported",sampler="on_cpu"} 500
otelcol_cpu_profiler_samples{outcome="refused",sampler="on_cpu"} 90
otelcol_receiver_accepted_profile_samples 500
otelcol_receiver_refused_profile_samples 60
otelcol_cpu_trigger_samples{outcome="passed"} 480
otelcol_cpu_trigger_samples{outcome="refused"} 60
otelcol_cpu_trigger_samples{outcome="evicted"} 20
`
	f, err := readPrometheus(strings.NewReader(text))
	require.NoError(t, err)
	e := newEntry("1. no queue", true, f)
	e.delivered = 480
	require.Empty(t, e.check())
	require.EqualValues(t, 30, e.untried())
	l := ledger{entries: []entry{e}, out: 480}
	require.Empty(t, l.check())

	e.delivered = 481
	require.NotEmpty(t, e.check())
}

func TestAnOutcomeThatIsNewIsInTheEquation(t *testing.T) {
	e := entryOf(t, scraped+`otelcol_cpu_profiler_samples{outcome="mislaid",sampler="on_cpu"} 8`+"\n")
	l := ledger{entries: []entry{e}, out: 390, rejected: 10}
	line, holds := l.equation()
	require.True(t, holds)
	require.Contains(t, line, "+ mislaid 8")
}

func TestPushedMetricsReadAsScrapedOnes(t *testing.T) {
	md := pmetric.NewMetrics()
	m := md.ResourceMetrics().AppendEmpty().ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName("otelcol_cpu_profiler.samples")
	p := m.SetEmptySum().DataPoints().AppendEmpty()
	p.SetIntValue(12)
	p.Attributes().PutStr("outcome", "exported")
	p.Attributes().PutBool("error.permanent", true)
	f := readOTLP(md)
	require.EqualValues(t, 12, f.sum(profilerSamples, "outcome", "exported", "error_permanent", "true"))
	require.EqualValues(t, 0, f.sum(profilerSamples, "outcome", "refused"))
}

func TestLabelsWithQuotesAndCommasAreRead(t *testing.T) {
	f, err := readPrometheus(strings.NewReader(`m{a="x,y",b="say \"so\"",c=""} 3` + "\n"))
	require.NoError(t, err)
	require.EqualValues(t, 3, f.sum("m", "a", "x,y", "b", `say "so"`, "c", ""))
	for _, bad := range []string{"m", "m{a=1} 2", `m{a="1} 2`, "m x"} {
		_, err := readPrometheus(strings.NewReader(bad))
		require.Error(t, err, bad)
	}
}

func TestTheScheduleFillsTheTime(t *testing.T) {
	for _, minutes := range []float64{0.5, 1, 7, 30, 60} {
		length := time.Duration(minutes * float64(time.Minute))
		acts := schedule(length)
		all, away, number := time.Duration(0), time.Duration(0), 0
		for _, a := range acts {
			number++
			require.Equal(t, number, a.number)
			all += a.duration
			shares := 0.0
			for _, p := range a.phases {
				shares += p.share
				if p.backend == gone {
					away += time.Duration(p.share * float64(a.duration))
				}
				// The backend must always know whether its responses arrived. This is not
				// possible if a collector without a queue is stopped, or if its sender gives
				// up.
				require.False(t, a.direct && (p.backend == restarting || p.backend == forgetful || p.event == pause || p.backend == invalid))
			}
			require.InDelta(t, 1, shares, 1e-9, a.name)
		}
		require.InDelta(t, length.Seconds(), all.Seconds(), 0.001)
		require.InDelta(t, 1.0/3, away.Seconds()/all.Seconds(), 0.05)
		require.Equal(t, drained, acts[len(acts)-1].end)
	}
}
