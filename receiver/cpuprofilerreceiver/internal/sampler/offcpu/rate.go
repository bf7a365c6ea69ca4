// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import "time"

// rate decides of how many switches one is sampled, and when there are too many
// of them to be read at all.
type rate struct {
	// most is how many switches per second are few enough, stacks how many stacks
	// are sampled per second; no more than most.
	most, stacks int

	mean               int
	begin              int64 // of the span that is counted
	switches, sampled  int
	second, inSecond   int64 // the second that is counted, and its switches
	calm               int   // spans in a row that a smaller mean would do for
	pauseFor, pausedAt int64
}

const (
	// span is how often the mean is thought about.
	span = int64(200 * time.Millisecond)
	// leastSpan is from when on a span tells something.
	leastSpan = int64(10 * time.Millisecond)
	// calmSpans are waited for before the mean is lowered.
	calmSpans = 10
	// tooMany is how many times the bound switches may come before they are not
	// read at all.
	tooMany = 20
	// firstPause is the first pause for too many switches; each that follows soon
	// is twice as long, up to lastPause.
	firstPause = int64(time.Second)
	lastPause  = int64(time.Minute)
)

func newRate(most, stacks int, now int64) *rate {
	return &rate{most: most, stacks: stacks, mean: 1, begin: now, second: now, pauseFor: firstPause}
}

// next is told the switches (off a CPU) and stacks since it was last called, and
// returns of how many switches one is to be sampled from now on; pause above 0:
// none for so long.
func (r *rate) next(now int64, switches, sampled int) (mean int, pause time.Duration) {
	r.switches += switches
	r.sampled += sampled
	r.inSecond += int64(switches)
	if now-r.second >= int64(time.Second) {
		over := r.inSecond*int64(time.Second) > int64(tooMany*r.most)*(now-r.second)
		r.second, r.inSecond = now, 0
		if over {
			if now-r.pausedAt > 4*r.pauseFor {
				r.pauseFor = firstPause
			}
			pause = time.Duration(r.pauseFor)
			r.pausedAt = now + r.pauseFor
			r.pauseFor = min(2*r.pauseFor, lastPause)
			return r.mean, pause
		}
	}
	elapsed := now - r.begin
	early := elapsed >= leastSpan && int64(r.sampled)*int64(time.Second) > int64(r.stacks)*span
	if elapsed < span && !early {
		return r.mean, 0
	}
	elapsed = max(elapsed, leastSpan)
	perSecond := int64(r.switches) * int64(time.Second) / elapsed
	// Where this does not do, there are too many switches.
	maxMean := int64(2 * tooMany * r.most / r.stacks)
	want := int(min((perSecond+int64(r.stacks)-1)/int64(r.stacks), maxMean))
	// Threads of a process each count by themselves, so that what is sampled may
	// be more than one of mean.
	stacks := int64(r.sampled) * int64(time.Second) / elapsed
	if stacks > int64(r.stacks) {
		want = max(want, int(min(int64(r.mean)*stacks/int64(r.stacks)+1, maxMean)))
	}
	want = max(want, 1)
	r.begin, r.switches, r.sampled = now, 0, 0
	switch {
	case want > r.mean:
		r.mean, r.calm = want, 0
	case 4*want <= 3*r.mean: // not for a little
		if r.calm++; r.calm >= calmSpans {
			r.mean, r.calm = want, 0
		}
	default:
		r.calm = 0
	}
	return r.mean, 0
}

// resumed begins to count anew.
func (r *rate) resumed(now int64) {
	r.begin, r.second = now, now
	r.switches, r.sampled, r.inSecond = 0, 0, 0
}

// draw is a number around the mean: its own inverse is the mean's on average, up
// to a few percent. Uniform from 1 on, it would not be.
func draw(mean int, intN func(int) int) int {
	if mean <= 1 {
		return 1
	}
	spread := max(mean/4, 1)
	return mean - spread + intN(2*spread+1)
}
