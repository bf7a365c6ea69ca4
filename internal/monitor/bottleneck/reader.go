// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package bottleneck

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

// A Gap is the reason why a reading was skipped although it was possible, for example
// because the unit cannot reach a threshold. A Gap is not a failure and is not logged.
type Gap string

// Error returns the reason.
func (g Gap) Error() string { return string(g) }

const (
	// errNotFollowed means that the unit is not followed, because its CPU usage is below
	// every threshold. Its CPU usage is still above negligible, so the reading cannot be
	// derived from the usage.
	errNotFollowed Gap = "its CPU usage is below every threshold of cpu_bottleneck, so its switches are not followed"
	// errFollowing means that following the unit has only just begun.
	errFollowing Gap = "its switches have only begun to be followed"
	// errUnseen means that the running processes were unknown for more than half of the
	// time since the last reading.
	errUnseen Gap = "for more than half of the time it is not known what ran: switch records were lost, or processes that ended could not be told apart any more"
	// errDisagrees means that the measured CPU time does not match the unit's CPU time.
	errDisagrees Gap = "the CPU time of what was seen to run is not the unit's: its processes are not all told apart from others by their cgroup"
)

const (
	// followFor is the time for which a unit stays followed after its usage was last high
	// enough to exceed a threshold. It prevents gaps in the history of a unit with varying
	// usage.
	followFor = time.Minute
	// negligible is a CPU usage in cores. A usage up to negligible is used directly as the time
	// with at least one thread on a CPU. The error is less than one percentage point.
	negligible = 0.01
)

const tooManyUnits cgroup.Unavailable = "more units than 256 are busy enough to have their switches followed"

// A Reader reads cpu_bottleneck of one unit. Only one goroutine may use it.
type Reader struct {
	of   *Follower
	what followed

	begun bool
	last  time.Time
	until time.Time // the unit is followed until then, regardless of its usage
	f     *followed // nil while it is not followed
	at    []int64   // f.at at the last reading: time by number of running threads

	busy, known time.Duration
}

// Read returns two sums of seconds since the first reading. busy is the time in which at
// least one thread of the unit was on a CPU. elapsed is the time for which it is known
// whether such a thread ran. The values are up to 100 ms old. cores is the unit's CPU
// usage since the last reading. The error is a [cgroup.Unavailable] or a [Gap]. Read
// does not wait for the follower.
func (r *Reader) Read(now time.Time, cores float64) (busy, elapsed float64, err error) {
	span := now.Sub(r.last)
	if !r.begun || span < 0 {
		span = 0
	}
	r.begun, r.last = true, now
	if 100*cores > r.of.least {
		r.until = now.Add(followFor)
	}
	wanted := now.Before(r.until)
	switch {
	case r.f != nil:
		err = r.advance(span, cores)
		if !wanted {
			r.Close()
		}
	case wanted && r.begin():
		err = errFollowing
	case wanted:
		err = tooManyUnits
	case cores > negligible:
		err = errNotFollowed
	default:
		r.busy += time.Duration(cores * float64(span))
		r.known += span
	}
	return r.busy.Seconds(), r.known.Seconds(), err
}

func (r *Reader) begin() bool {
	f := r.what
	if !r.of.follow(&f) {
		return false
	}
	r.f, r.at = &f, r.at[:0]
	return true
}

// advance adds the time that was measured since the last reading.
func (r *Reader) advance(span time.Duration, cores float64) error {
	busyBefore, knownBefore, cpuBefore := sums(r.at)
	r.of.mu.Lock()
	err := r.of.err
	r.at = append(r.at[:0], r.f.at...)
	r.of.mu.Unlock()
	busy, known, cpu := sums(r.at)
	added := time.Duration(known - knownBefore)
	r.busy += time.Duration(busy - busyBefore)
	r.known += added
	switch {
	case err != nil:
		return err
	case added < span/2 && span-added > lag:
		return errUnseen
	}
	// The scheduler tick, the lag and changes of the usage can make the two CPU times
	// differ, but by less than half of the used CPU time.
	used := time.Duration(cores * float64(added))
	if off := (time.Duration(cpu-cpuBefore) - used).Abs(); off > lag && off > used/2 {
		return errDisagrees
	}
	return nil
}

// Close stops following the unit.
func (r *Reader) Close() {
	if r.f != nil {
		r.of.unfollow(r.f)
		r.f = nil
	}
}
