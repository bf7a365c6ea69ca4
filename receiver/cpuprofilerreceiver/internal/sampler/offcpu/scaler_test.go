// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package offcpu

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
)

// TestValuesSumToTheTimeThatThreadsWaited simulates threads that run and wait at random.
// A window ends every 1000 steps. The values must add up to the total waiting time of the
// threads.
func TestValuesSumToTheTimeThatThreadsWaited(t *testing.T) {
	for _, mean := range []int{1, 2, 10} {
		rnd := rand.New(rand.NewPCG(1, uint64(mean)))
		var given, without, wrong int64
		windowStart := int64(0)
		scaler := newScaler(1000, func(p *part, _ *samples.Type, _, value int64) {
			given += value
			if p.stack == nil {
				without += value
			}
			if p.end <= windowStart {
				wrong++
			}
		})
		w := newWaits(0, 1000, scaler.add)
		w.setMean(mean, 0)
		stacks := []*samples.Stack{{}, {}, {}}
		waited := int64(0)
		since := make([]int64, 20) // by thread; not positive while the thread runs
		now := int64(1)
		for step := range 50_000 {
			now += 1 + rnd.Int64N(100)
			tid := rnd.IntN(len(since))
			pid := 1 + tid/10
			switch {
			case step%1000 == 999:
				w.cut(now)
				scaler.settle()
				windowStart = now
			case since[tid] <= 0:
				if mean == 1 || rnd.IntN(mean) == 0 {
					w.sampled(pid, 100+tid, 1, caller{stack: stacks[rnd.IntN(3)]})
				}
				w.left(pid, 100+tid, now, tid%2 == 0, nil)
				since[tid] = now
			default:
				w.came(pid, 100+tid, now, nil)
				waited += now - since[tid]
				since[tid] = 0
			}
		}
		for _, s := range since {
			if s > 0 {
				waited += now - s
			}
		}
		w.cut(now)
		scaler.settle()
		require.Zero(t, wrong, "every part ends in its window")
		require.Equal(t, waited, given)
		require.Equal(t, without, scaler.unshared)
		if mean == 1 {
			require.Zero(t, without)
		}
		require.Empty(t, scaler.accounts)
		require.Zero(t, scaler.stackless)
		require.Empty(t, scaler.held)
	}
}

// TestScaledValuesAreUnbiased samples the waits of two stacks in many trials.
// The waits of one stack are ten times as long as the waits of the other
// stack. The mean of a stack's values must equal its true time, within the
// error that the number of trials allows.
func TestScaledValuesAreUnbiased(t *testing.T) {
	const trials, waitsEach, mean = 400, 300, 5
	rnd := rand.New(rand.NewPCG(7, 7))
	brief, long := &samples.Stack{}, &samples.Stack{}
	var sum, squares float64
	truth := float64(waitsEach * 1000)
	for range trials {
		got := map[*samples.Stack]float64{}
		scaler := newScaler(1<<20, func(p *part, _ *samples.Type, _, value int64) { got[p.stack] += float64(value) })
		w := newWaits(0, 10, scaler.add)
		w.setMean(mean, 0)
		next := draw(mean, rnd.IntN)
		now := int64(0)
		for range waitsEach {
			for _, s := range []*samples.Stack{brief, long} { // a loop with two waits
				length := int64(1000)
				if s == long {
					length = 10_000
				}
				if next--; next == 0 {
					w.sampled(1, 1, 1, caller{stack: s})
					next = draw(mean, rnd.IntN)
				}
				w.left(1, 1, now, false, nil)
				now += length
				w.came(1, 1, now, nil)
				now += 100
			}
		}
		scaler.settle()
		require.InDelta(t, 11*truth, got[brief]+got[long], 1)
		sum += got[brief]
		squares += got[brief] * got[brief]
	}
	average := sum / trials
	sigma := math.Sqrt((squares/trials - average*average) / trials)
	t.Logf("%.0f, truth %.0f, standard error %.0f", average, truth, sigma)
	// A ratio that is estimated from n sampled waits has a bias of about 1/n.
	bias := truth * 10 / (2 * waitsEach / mean)
	require.InDelta(t, truth, average, 4*sigma+bias)
}

func TestPartsThatAreHeldAreBounded(t *testing.T) {
	given := int64(0)
	s := newScaler(10, func(_ *part, _ *samples.Type, _, value int64) { given += value })
	stack := &samples.Stack{}
	all := int64(0)
	for pid := range 100 {
		for range 7 {
			s.add(&part{pid: pid, weight: 3, caller: caller{stack: stack}, length: 5})
			s.add(&part{pid: pid, weight: 3, length: 5})
			all += 10
			require.LessOrEqual(t, len(s.held), 10)
			require.LessOrEqual(t, len(s.accounts), 10)
		}
	}
	s.settle()
	require.Equal(t, all, given)
}

func TestBoundOnStacks(t *testing.T) {
	const most = 1000
	// play simulates the given number of switches per second. It returns
	// the last sampling interval in switches, the total number of
	// sampled stacks, and the first pause.
	play := func(r *rate, from int64, perSecond int, span time.Duration) (mean, stacks int, pause time.Duration) {
		const step = 20 * time.Millisecond
		for at := step; at <= span; at += step {
			n := perSecond * int(step) / int(time.Second)
			sampled := n / r.mean
			stacks += sampled
			if mean, pause = r.next(from+int64(at), n, sampled); pause > 0 {
				break
			}
		}
		return mean, stacks, pause
	}
	r := newRate(most, most, 0)
	mean, _, _ := play(r, 0, 900, 5*time.Second)
	require.Equal(t, 1, mean, "within the bound")
	mean, stacks, pause := play(r, 5e9, 10_000, 5*time.Second)
	require.InDelta(t, 10, mean, 1)
	require.Zero(t, pause)
	require.InDelta(t, 5*most, stacks, most, "the bound, and what came until it was noticed")
	mean, _, _ = play(r, 10e9, 500, time.Second)
	require.InDelta(t, 10, mean, 1, "not lowered at once")
	mean, _, _ = play(r, 11e9, 500, 4*time.Second)
	require.Equal(t, 1, mean)
	_, _, pause = play(r, 15e9, 19*most, 3*time.Second)
	require.Zero(t, pause, "19 times the bound is read")
	_, _, pause = play(r, 18e9, 25*most, 2*time.Second)
	require.Equal(t, time.Second, pause)
	r.resumed(21e9)
	_, _, pause = play(r, 21e9, 25*most, 2*time.Second)
	require.Equal(t, 2*time.Second, pause, "longer, since it is the same again")
	r.resumed(60e9)
	_, _, pause = play(r, 60e9, 25*most, 2*time.Second)
	require.Equal(t, time.Second, pause, "it was long ago")
}

// TestBoundOnCopiedStacks checks that fewer stacks are sampled if stacks are copied. The
// number of switches that are read must stay the same.
func TestBoundOnCopiedStacks(t *testing.T) {
	const most = 10_000
	require.Equal(t, most, perftargets.StacksPerSecond(most, 0))
	require.Equal(t, 1024, perftargets.StacksPerSecond(most, 16384))
	require.Equal(t, 256, perftargets.StacksPerSecond(most, perfevent.MaxUserStack))
	require.Equal(t, 100, perftargets.StacksPerSecond(100, 16384), "fewer were asked for")
	r := newRate(most, perftargets.StacksPerSecond(most, 16384), 0)
	stacks := 0
	second := func(from int64, perSecond int) (mean int, pause time.Duration) {
		stacks = 0
		for at := int64(0); at < int64(time.Second) && pause == 0; at += int64(20 * time.Millisecond) {
			sampled := perSecond / 50 / r.mean
			stacks += sampled
			mean, pause = r.next(from+at+int64(20*time.Millisecond), perSecond/50, sampled)
		}
		return mean, pause
	}
	mean, _ := second(0, 1000)
	require.Equal(t, 1, mean)
	mean, pause := second(1e9, 19*most)
	require.Zero(t, pause)
	require.InDelta(t, 19*most/1024, mean, 10)
	_, pause = second(2e9, 19*most)
	require.Zero(t, pause, "that many are read all the same")
	require.LessOrEqual(t, stacks, 1100)
	second(3e9, 21*most)
	_, pause = second(4e9, 21*most)
	require.Positive(t, pause)
}

func TestDrawIsAroundItsMean(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	require.Equal(t, 1, draw(1, rnd.IntN))
	for _, mean := range []int{2, 3, 8, 40} {
		sum, inverse := 0.0, 0.0
		for range 10000 {
			n := draw(mean, rnd.IntN)
			require.Positive(t, n)
			sum, inverse = sum+float64(n), inverse+1/float64(n)
		}
		require.InEpsilon(t, mean, sum/10000, 0.02)
		require.InEpsilon(t, 1/float64(mean), inverse/10000, 0.25)
	}
}

func TestStatusOfAThread(t *testing.T) {
	for name, test := range map[string]struct {
		status      string
		switches    uint64
		running, ok bool
	}{
		"waits":   {"Name:\tx\nState:\tS (sleeping)\nPid:\t1\nUid:\t0\t0\t0\t0\nvoluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t2\n", 7, false, true},
		"runs":    {"State:\tR (running)\nPid:\t1\nUid:\t0\t0\t0\t0\nvoluntary_ctxt_switches:\t5\n", 5, true, true},
		"is dead": {"State:\tZ (zombie)\nPid:\t1\nUid:\t0\t0\t0\t0\n", 0, false, false},
		"nothing": {"", 0, false, true},
		"rubbish": {"State:\n:\nvoluntary_ctxt_switches:\tmany\n", 0, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			switches, running, ok := parseStatus([]byte(test.status))
			require.Equal(t, test.switches, switches)
			require.Equal(t, test.running, running)
			require.Equal(t, test.ok, ok)
		})
	}
}

func FuzzStatus(f *testing.F) {
	f.Add([]byte("State:\tS (sleeping)\nPid:\t1\nUid:\t0\t0\t0\t0\nvoluntary_ctxt_switches:\t5\n"))
	f.Add([]byte("State:\nvoluntary_ctxt_switches:\t99999999999999999999999\n"))
	f.Fuzz(func(_ *testing.T, status []byte) { parseStatus(status) })
}

// FuzzSwitches passes records in any order to the state machine. A value must
// never be less than 1. The values of a process must not exceed the time that
// its threads could have waited.
func FuzzSwitches(f *testing.F) {
	f.Add([]byte{0x10, 0x21, 0x32, 0x40, 0x50, 0x63, 0x72, 0x14, 0x21, 0x34}, uint8(1))
	f.Add([]byte{0x12, 0x22, 0x72, 0x82, 0x32, 0x41, 0x01, 0x51}, uint8(3))
	f.Fuzz(func(t *testing.T, ops []byte, mean uint8) {
		given := int64(0)
		s := newScaler(8, func(_ *part, _ *samples.Type, _, value int64) {
			if value < 1 {
				t.Fatalf("value %d", value)
			}
			given += value
		})
		w := newWaits(2, 4, s.add)
		w.setMean(int(mean%4)+1, 0)
		now := int64(1)
		for _, op := range ops {
			now += int64(op % 7)
			tid := int(op&7) + 1
			switch op >> 4 {
			case 0:
				now -= 3 // the next record has an earlier time
			case 1:
				w.sampled(1, tid, 1, caller{stack: &samples.Stack{}})
			case 2:
				w.left(1, tid, now, op&8 != 0, nil)
			case 3:
				w.came(1, tid, now, nil)
			case 4:
				w.exited(1, tid)
			case 5:
				w.started(tid)
			case 6:
				w.forget()
			case 7:
				w.cut(now)
				s.settle()
			case 8:
				w.setMean(int(op&3)+1, now)
			case 9:
				w.setOwn(tid, now)
			case 10:
				w.setOwn(tid, 0)
			}
			if len(w.threads) > 4 {
				t.Fatal("more threads than are to be followed")
			}
		}
		w.cut(now)
		s.settle()
		if limit := 8 * (now + 3*int64(len(ops)) + int64(len(ops))); given > limit {
			t.Fatalf("%d shown of at most %d", given, limit)
		}
	})
}
