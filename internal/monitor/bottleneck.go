// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

// The gaps.
const (
	// errNotFollowed is for a unit that uses too little CPU time to be above any
	// threshold of cpu_bottleneck, and too much to know it by that alone.
	errNotFollowed Gap = "its CPU usage is below every threshold of cpu_bottleneck, so its switches are not followed"
	// errFollowing is for a unit of which little is known yet.
	errFollowing Gap = "its switches have only begun to be followed"
	// errUnseen is for a span of which less than half could be seen.
	errUnseen Gap = "for more than half of the time it is not known what ran: switch records were lost, or processes that ended could not be told apart any more"
	// errDisagrees is for figures that are not the unit's.
	errDisagrees Gap = "the CPU time of what was seen to run is not the unit's: its processes are not all told apart from others by their cgroup"
)

const (
	// followFor is for how long a unit is still followed after its usage last
	// made a threshold possible, so that one that comes and goes has a whole
	// history.
	followFor = time.Minute
	// negligible is a usage, in cores, that is as good as the time with at least
	// one thread on a CPU: they differ by less than one point.
	negligible = 0.01
)

const tooManyUnits cgroup.Unavailable = "more units than 256 are busy enough to have their switches followed"

// A bottleneck reads cpu_bottleneck for one unit. It belongs to the goroutine of
// the source.
type bottleneck struct {
	of   *bottlenecks
	what followed

	begun bool
	last  time.Time
	until time.Time // followed until then, whatever its usage
	f     *followed // nil while it is not followed
	at    []int64   // of f, as of the last reading

	busy, known time.Duration
}

// Read returns, cumulative since the first reading, the seconds in which at least
// one thread of the unit was on a CPU, and the seconds of which that is known.
// Both are those of up to 100 ms before now. Cores is the unit's CPU usage since
// the last reading. The error is a [cgroup.Unavailable] or a gap. It does not
// wait for what follows the switches.
func (n *bottleneck) Read(now time.Time, cores float64) (busy, elapsed float64, err error) {
	span := now.Sub(n.last)
	if !n.begun || span < 0 {
		span = 0
	}
	n.begun, n.last = true, now
	if 100*cores > n.of.least {
		n.until = now.Add(followFor)
	}
	wanted := now.Before(n.until)
	switch {
	case n.f != nil:
		err = n.take(span, cores)
		if !wanted {
			n.Close()
		}
	case wanted && n.begin():
		err = errFollowing
	case wanted:
		err = tooManyUnits
	case cores > negligible:
		err = errNotFollowed
	default:
		n.busy += time.Duration(cores * float64(span))
		n.known += span
	}
	return n.busy.Seconds(), n.known.Seconds(), err
}

func (n *bottleneck) begin() bool {
	f := n.what
	if !n.of.follow(&f) {
		return false
	}
	n.f, n.at = &f, n.at[:0]
	return true
}

// take adds what became known since the last reading.
func (n *bottleneck) take(span time.Duration, cores float64) error {
	busyBefore, knownBefore, cpuBefore := sums(n.at)
	n.of.mu.Lock()
	err := n.of.err
	n.at = append(n.at[:0], n.f.at...)
	n.of.mu.Unlock()
	busy, known, cpu := sums(n.at)
	added := time.Duration(known - knownBefore)
	n.busy += time.Duration(busy - busyBefore)
	n.known += added
	switch {
	case err != nil:
		return err
	case added < span/2 && span-added > lag:
		return errUnseen
	}
	// Tick, lag and a change of usage meanwhile bend this, but not by half.
	used := time.Duration(cores * float64(added))
	if off := (time.Duration(cpu-cpuBefore) - used).Abs(); off > lag && off > used/2 {
		return errDisagrees
	}
	return nil
}

// Simultaneity returns the time at k running threads, for each k, since the unit
// was last begun to be followed, as of the last reading. It is valid until the
// next one.
func (n *bottleneck) Simultaneity() []int64 { return n.at }

// Close ends it.
func (n *bottleneck) Close() {
	if n.f != nil {
		n.of.unfollow(n.f)
		n.f = nil
	}
}
