// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package offcpu

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
)

var update = flag.Bool("update", false, "write what the scripts give into them")

// TestScripts runs the scripts in testdata through the state machine. A line of a script
// consists of a time in milliseconds and an event:
//
//	sample PID/TID STACK         a stack was sampled before the thread left its CPU
//	out PID/TID [TARGET]         the thread left its CPU because it blocked
//	preempted PID/TID [TARGET]   the thread left its CPU because it was preempted
//	in PID/TID [TARGET]          the thread got a CPU again
//	fork TID                     the thread was started
//	exec TID                     the thread executed another program
//	exit PID/TID                 the thread ended
//	cut                          the window ends
//	forget                       all waits in progress are forgotten
//	detach TARGET                the target is no longer sampled
//	mean N                       the stack of one of N switches is sampled
//	lost FROM                    switches were lost since the time FROM
//	own PID/TID                  each switch of the thread is sampled
//	shared PID/TID               the thread is sampled like all other threads again
//	gone TID                     the thread is no longer in the state of its last event
//	counts                       the counters are printed
//
// The lines after an event that begin with > are the expected results. Each result
// consists of the type, the process, the stack, the length and the value in milliseconds,
// and the end of the wait. The first line of a script may be a setting. The setting least
// is the shortest wait in milliseconds, and the setting most is the largest number of
// threads.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			got := newScript().play(t, string(text))
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			require.Equal(t, string(text), got)
		})
	}
}

type script struct {
	*waits
	*scaler
	stacks  map[string]*samples.Stack
	names   map[*samples.Stack]string
	targets map[string]*perfevent.Attachment
	away    map[int]bool
	out     []string
}

func newScript() *script {
	s := &script{
		stacks: map[string]*samples.Stack{}, names: map[*samples.Stack]string{},
		targets: map[string]*perfevent.Attachment{}, away: map[int]bool{},
	}
	s.scaler = newScaler(100, s.emitted)
	s.waits = newWaits(time.Millisecond, 100, s.add)
	s.still = func(t *thread) bool { return !s.away[t.tid] }
	return s
}

func (s *script) emitted(p *part, typ *samples.Type, period, value int64) {
	scaled := ""
	if typ.Scaled != "" {
		scaled = fmt.Sprintf(", one of %d", period)
	}
	name := s.names[p.stack]
	if p.stack == nil {
		name = fmt.Sprintf("no stack of %d", p.tid)
	}
	s.out = append(s.out, fmt.Sprintf("> %s %d %s: %v, value %v, until %v%s", typ.Name, p.pid, name,
		ms(p.length), ms(value), ms(p.end), scaled))
}

func ms(nanoseconds int64) string {
	return strconv.FormatFloat(math.Round(float64(nanoseconds)/1e3)/1e3, 'f', -1, 64)
}

func (s *script) play(t *testing.T, text string) string {
	var all []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, ">") {
			continue
		}
		all = append(all, line)
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		s.out = nil
		s.do(t, line, f)
		slices.Sort(s.out) // threads have no fixed order
		all = append(all, s.out...)
	}
	return strings.Join(all, "\n") + "\n"
}

func (s *script) do(t *testing.T, line string, f []string) {
	number := func(s string) int64 {
		n, err := strconv.ParseFloat(s, 64)
		require.NoError(t, err, line)
		return int64(math.Round(n * 1e6))
	}
	switch f[0] {
	case "least":
		s.least = number(f[1])
		return
	case "most":
		s.waits.most = int(number(f[1]) / 1e6)
		return
	}
	at := number(f[0])
	var pid, tid int
	if len(f) > 2 {
		before, after, both := strings.Cut(f[2], "/")
		pid, _ = strconv.Atoi(before)
		tid = pid
		if both {
			tid, _ = strconv.Atoi(after)
		}
	}
	target := func() *perfevent.Attachment {
		if len(f) < 4 {
			return nil
		}
		return s.target(f[3])
	}
	switch f[1] {
	case "sample":
		s.sampled(pid, tid, 1, caller{stack: s.stack(f[3])})
	case "out":
		s.left(pid, tid, at, false, target())
	case "preempted":
		s.left(pid, tid, at, true, target())
	case "in":
		s.came(pid, tid, at, target())
	case "fork":
		s.started(tid)
	case "exec":
		s.started(tid)
	case "exit":
		s.exited(pid, tid)
	case "cut":
		s.cut(at)
		s.settle()
	case "lost":
		s.lost(number(f[2]), at, true, true)
	case "forget":
		s.waits.forget()
	case "detach":
		s.forgetTarget(s.target(f[2]))
	case "mean":
		s.setMean(pid, at)
	case "own":
		s.setOwn(tid, at)
	case "shared":
		s.setOwn(tid, 0)
	case "gone":
		s.away[tid] = true
	case "counts":
		c := s.counts
		s.out = append(s.out, fmt.Sprintf("> %d switches, %d waits, %d short, %d under way, %d forgotten, %d left out; %d threads; %d stackless, %v unshared",
			c.Switches, c.Waits, c.Short, c.UnderWay, c.Forgotten, c.LeftOut, len(s.threads), s.stackless, ms(s.unshared)))
	default:
		t.Fatalf("%q: what is %q?", line, f[1])
	}
}

func (s *script) stack(name string) *samples.Stack {
	if s.stacks[name] == nil {
		s.stacks[name] = &samples.Stack{}
		s.names[s.stacks[name]] = name
	}
	return s.stacks[name]
}

func (s *script) target(name string) *perfevent.Attachment {
	if s.targets[name] == nil {
		s.targets[name] = new(perfevent.Attachment)
	}
	return s.targets[name]
}
