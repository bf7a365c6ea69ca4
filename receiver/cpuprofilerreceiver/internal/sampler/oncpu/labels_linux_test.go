// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package oncpu

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/golabels"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

func skipWithoutProbes(t testing.TB) {
	t.Helper()
	u, err := perfevent.Open(perfevent.Options{HostWide: true, Probes: true})
	if err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
		return
	}
	require.NoError(t, u.Close())
}

// recorder is a sink that keeps the samples of one process.
type recorder struct {
	discard
	mu  sync.Mutex
	pid int
	all []recorded
}

type recorded struct {
	key  samples.Key
	time int64
}

func (r *recorder) AddValue(k samples.Key, at, _ int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k.Resource.PID == r.pid {
		r.all = append(r.all, recorded{k, at})
	}
	return true
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all)
}

func (r *recorder) labelled() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.all {
		if s.key.Link.Valid() {
			n++
		}
	}
	return n
}

// span is a line of output of test/testdata/golabels.
type span struct {
	tid        int32
	start, end int64
	id         uint64
}

// buildGo builds a program from test/testdata and returns the path of the executable.
func buildGo(t testing.TB, name string) string {
	t.Helper()
	return hosttest.Compiled(t, name, name, func(program string) {
		cmd := exec.Command("go", "build", "-o", program, "-ldflags=-s -w", "../../../../../test/testdata/"+name)
		cmd.Env = append(os.Environ(), "GO111MODULE=off", "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
	})
}

// labelSampler returns a sampler of the whole host and the Labels that it uses. Only
// the process of the sink is hot.
func labelSampler(t testing.TB, sink *recorder, change func(*golabels.Config, *Settings)) (*Sampler, *golabels.Labels, *observer.ObservedLogs) {
	t.Helper()
	var labels *golabels.Labels
	s, _, logs := newTestSampler(&finding{Finding: perftargets.Finding{Wanted: perftargets.Wanted{Host: true}}}, func(c *Settings) {
		c.Frequency, c.Sink, c.ThreadID = 199, sink, true
		c.Stacks = unwind.NewStacks(unwind.StacksConfig{Mode: unwind.Copies, Bytes: 1024, Tables: tables(t)})
		cfg := golabels.Config{
			Access: mappedfile.Access{Root: "/"}, Keys: []string{"http.route"}, Logger: c.Logger, Now: c.Now,
			Hot: func() func(*processes.Process) bool {
				return func(p *processes.Process) bool { return p.PID == sink.pid }
			},
		}
		change(&cfg, c)
		labels = golabels.New(cfg)
		c.Labels = labels
	})
	require.NoError(t, s.Start(t.Context()))
	return s, labels, logs
}

// sampleSpans samples a program until enough samples have a span. It counts the samples
// that were taken inside a span of the program. right counts samples with the correct
// span, none counts samples without a span, and wrong counts samples with an incorrect
// span.
func sampleSpans(t testing.TB, program string, of time.Duration, workers int, kind string, enough int) (right, none, wrong int, proven, unproven uint64) {
	t.Helper()
	cmd := exec.Command(program, of.String(), fmt.Sprint(workers), kind)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	var spans []span
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			var s span
			if _, err := fmt.Sscan(lines.Text(), &s.tid, &s.start, &s.end, &s.id); err == nil {
				spans = append(spans, s)
			}
		}
	}()
	sink := &recorder{pid: cmd.Process.Pid}
	s, labels, _ := labelSampler(t, sink, func(*golabels.Config, *Settings) {})
	require.Eventually(t, func() bool { return sink.labelled() >= enough }, 4*patience, 10*time.Millisecond)
	require.NoError(t, s.Stop(t.Context()))
	require.NoError(t, stdin.Close())
	<-read
	require.NoError(t, cmd.Wait())

	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	first := slices.IndexFunc(sink.all, func(r recorded) bool { return r.key.Link.Valid() })
	for _, r := range sink.all[first:] {
		var got uint64
		if r.key.Link.Valid() {
			got = binary.BigEndian.Uint64(r.key.Link.SpanID[:])
			require.Equal(t, fmt.Sprintf("http.route\x00/route/%d\x00", got%7), r.key.Labels)
		}
		for _, s := range spans {
			if s.tid != r.key.Thread.ID || r.time < s.start || r.time > s.end {
				continue
			}
			switch got {
			case s.id:
				right++
			case 0:
				none++
			default:
				wrong++
			}
		}
	}
	return right, none, wrong, labels.Count(golabels.Proven), labels.Count(golabels.Unproven)
}

func TestSamplesHaveTheLabelsOfTheirTime(t *testing.T) {
	skipWithoutProbes(t)
	program := buildGo(t, "golabels")
	for _, kind := range strings.Fields("do spawn start") {
		t.Run(kind, func(t *testing.T) {
			right, none, wrong, proven, unproven := sampleSpans(t, program, 50*time.Millisecond, 2, kind, 20)
			t.Logf("right %d, none %d, wrong %d, proven %d, unproven %d", right, none, wrong, proven, unproven)
			require.LessOrEqual(t, wrong, right/200)
			require.GreaterOrEqual(t, right, 10)
		})
	}
}

// startSpans starts a program that runs spans until the end of the test.
func startSpans(t testing.TB, of time.Duration) *recorder {
	t.Helper()
	skipWithoutProbes(t)
	cmd := exec.Command(buildGo(t, "golabels"), of.String(), "1", "do")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); _ = stdin.Close() })
	return &recorder{pid: cmd.Process.Pid}
}

// TestLabelsThatChangeTooOften checks that labels are no longer read if they change too
// often. Sampling must continue.
func TestLabelsThatChangeTooOften(t *testing.T) {
	sink := startSpans(t, time.Millisecond)
	s, labels, logs := labelSampler(t, sink, func(cfg *golabels.Config, _ *Settings) { cfg.MaxHits = 3 })
	defer func() { require.NoError(t, s.Stop(t.Context())) }()
	require.Eventually(t, func() bool { return labels.Count(golabels.Frequent) == 1 }, 4*patience, 10*time.Millisecond)
	require.Equal(t, 1, logs.FilterMessageSnippet("change too often").Len())
	before := sink.count()
	require.Eventually(t, func() bool { return sink.count() >= before+20 }, 4*patience, 10*time.Millisecond)
	require.Zero(t, labels.Count(golabels.Frequent), "the probes stay away")
}

// TestSamplingGoesOnWithoutLabelsThatDoNotAnswer checks that sampling continues if
// reading the memory of a process blocks.
func TestSamplingGoesOnWithoutLabelsThatDoNotAnswer(t *testing.T) {
	sink := startSpans(t, 10*time.Millisecond)
	release := make(chan struct{})
	runner := stuckread.New(zap.NewNop(), nil, nil)
	var reads atomic.Int64
	s, _, _ := labelSampler(t, sink, func(cfg *golabels.Config, c *Settings) {
		cfg.Runner, c.Runner = runner, runner
		cfg.Read = func(int, uint64, []byte) int { reads.Add(1); <-release; return 0 }
	})
	defer func() { require.NoError(t, s.Stop(t.Context())) }()
	require.Eventually(t, func() bool { return runner.Stats().Late == 1 }, 4*patience, 10*time.Millisecond, "its memory is read")
	before := sink.count()
	require.Eventually(t, func() bool { return sink.count() >= before+20 }, 4*patience, 10*time.Millisecond)
	require.EqualValues(t, 1, reads.Load(), "it is given up")
	close(release)
	require.Eventually(t, func() bool { return runner.Stats().Stuck == 0 }, patience, 10*time.Millisecond)
}

// TestOtherProgramsHaveNoLabels checks that a hot program that is not a Go program gets no
// probes. Its samples must not wake the reader one by one.
func TestOtherProgramsHaveNoLabels(t *testing.T) {
	skipWithoutProbes(t)
	cmd := exec.Command("/bin/sh", "-c", "while :; do :; done")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	sink := &recorder{pid: cmd.Process.Pid}
	s, labels, logs := labelSampler(t, sink, func(*golabels.Config, *Settings) {})
	require.Eventually(t, func() bool { return sink.count() >= 200 }, 4*patience, 10*time.Millisecond)
	require.NoError(t, s.Stop(t.Context()))
	require.False(t, s.reader.prompt)
	require.Zero(t, labels.Count(golabels.Proven)+labels.Count(golabels.Unproven))
	require.Zero(t, logs.FilterMessageSnippet("labels of goroutines").Len())
}
