// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package offcpu

import "time"

// rate determines the fraction of the switches that is sampled. It also determines when
// sampling must pause, because there are too many switches to read.
type rate struct {
	// most is the number of switches per second that are cheap to read. stacks is the bound
	// on sampled stacks per second, with stacks <= most.
	most, stacks int

	mean               int
	begin              int64 // start of the current span
	switches, sampled  int
	second, inSecond   int64 // the current second, and its switches
	calm               int   // consecutive spans in which a smaller mean was enough
	pauseFor, pausedAt int64
}

const (
	// span is the time between two changes of the mean.
	span = int64(200 * time.Millisecond)
	// leastSpan is the shortest span from which a meaningful rate can be computed.
	leastSpan = int64(10 * time.Millisecond)
	// calmSpans is the number of calm spans before the mean is lowered.
	calmSpans = 10
	// Sampling pauses if there are more than tooMany times rate.most switches per second.
	tooMany = 20
	// firstPause is the length of the first pause for too many switches. Each pause that
	// follows soon after is twice as long, up to lastPause.
	firstPause = int64(time.Second)
	lastPause  = int64(time.Minute)
)

func newRate(most, stacks int, now int64) *rate {
	return &rate{most: most, stacks: stacks, mean: 1, begin: now, second: now, pauseFor: firstPause}
}

// next counts the switches off a CPU and the sampled stacks since the last call. It
// returns the new mean. From this call on, one of mean switches is sampled. If pause is
// above 0, sampling must pause for this time.
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
	// With a larger mean there would be too many switches to read.
	maxMean := int64(2 * tooMany * r.most / r.stacks)
	want := int(min((perSecond+int64(r.stacks)-1)/int64(r.stacks), maxMean))
	// The switches of each thread count separately, so more than one in mean switches of a
	// process may be sampled.
	stacks := int64(r.sampled) * int64(time.Second) / elapsed
	if stacks > int64(r.stacks) {
		want = max(want, int(min(int64(r.mean)*stacks/int64(r.stacks)+1, maxMean)))
	}
	want = max(want, 1)
	r.begin, r.switches, r.sampled = now, 0, 0
	switch {
	case want > r.mean:
		r.mean, r.calm = want, 0
	case 4*want <= 3*r.mean: // ignores a small difference
		if r.calm++; r.calm >= calmSpans {
			r.mean, r.calm = want, 0
		}
	default:
		r.calm = 0
	}
	return r.mean, 0
}

// resumed restarts the counts after a pause.
func (r *rate) resumed(now int64) {
	r.begin, r.second = now, now
	r.switches, r.sampled, r.inSecond = 0, 0, 0
}

// draw returns a random number around the mean. The average inverse of the number exceeds
// the inverse of the mean by 22 % for a mean of 2, 8 % for 3, and at most 5 % above. A
// uniform number from 1 on would exceed it by far more.
func draw(mean int, intN func(int) int) int {
	if mean <= 1 {
		return 1
	}
	spread := max(mean/4, 1)
	return mean - spread + intN(2*spread+1)
}
