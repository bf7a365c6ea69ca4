// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"time"
)

// errors of readings that are gaps.
var (
	// errNotFollowed is for a unit that uses too little CPU time to be above any
	// threshold of cpu_bottleneck.
	errNotFollowed = errors.New("its CPU usage is below every threshold of cpu_bottleneck, so its switches are not followed")
	// errFollowing is for a unit of which nothing is known yet.
	errFollowing = errors.New("its switches have only begun to be followed")
	// errUnseen is for a span of which less than half could be seen.
	errUnseen = errors.New("switch records were lost, or what ran was not known, for more than half of the time")
)

// bottleneckOptions are what bottlenecks are made with.
type bottleneckOptions struct {
	// Least is the lowest threshold in use, in %.
	Least float64
	// MaxSwitches is how many switches a second the host may have; 0 means
	// 200,000.
	MaxSwitches int
}

// bottlenecks follow the switches of all CPUs on behalf of the units that use
// enough CPU time, in a goroutine of their own.
type bottlenecks struct{}

// newBottlenecks makes them for the units of a source. Nothing runs before a
// unit is busy enough.
func newBottlenecks(s *Source, o bottleneckOptions) *bottlenecks { return &bottlenecks{} }

// unit returns the reader for a unit that is a cgroup, by its id.
func (b *bottlenecks) unit(id string) *bottleneck { return &bottleneck{} }

// process returns the reader for a unit that is a process.
func (b *bottlenecks) process(p Process) *bottleneck { return &bottleneck{} }

// close stops the goroutine and waits for it.
func (b *bottlenecks) close() {}

// A bottleneck reads cpu_bottleneck for one unit.
type bottleneck struct{}

// Read returns, cumulative since the first reading, the seconds in which at least
// one thread of the unit was on a CPU, and the seconds of which that is known.
// Both are those of up to 100 ms before now. Cores is the unit's CPU usage since
// the last reading. The error is a [cgroup.Unavailable] or a gap.
func (n *bottleneck) Read(now time.Time, cores float64) (busy, elapsed float64, err error) {
	return 0, 0, errFollowing
}

// Close ends it.
func (n *bottleneck) Close() {}
