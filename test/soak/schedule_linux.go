// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "time"

// ending is the way in which a run of the collector ends.
type ending string

const (
	killed  ending = "kill -9"
	stopped ending = "SIGTERM under load"
	drained ending = "drained, then SIGTERM"
)

// event is something that happens once, at the beginning of a phase.
type event string

const (
	nothing event = ""
	// burst makes .NET services send as fast as they can.
	burst event = "and .NET services flood it"
	// pause stops the collector for the whole phase, so that the kernel's rings overflow.
	pause event = "and the collector paused"
)

// phase is a part of a run.
type phase struct {
	share   float64 // the share of the run's time
	backend mood
	event   event
}

// act is a run of the collector.
type act struct {
	name   string
	direct bool // without a queue, so that a slow backend affects even the rings
	phases []phase
	end    ending
	share  float64 // the share of the cycle's time, or of the total time for the last act
}

// cycle is played repeatedly. last is played once, at the
// end. The backend is gone for about a third of the time.
var (
	cycle = []act{
		{
			name: "queue, outage", end: killed, share: 0.35,
			phases: []phase{
				{0.25, healthy, nothing},
				{0.40, gone, nothing},
				{0.10, healthy, nothing},
				{0.15, slow, nothing},
				{0.10, unavailable, nothing},
			},
		},
		{
			name: "queue, bad answers", end: stopped, share: 0.30,
			phases: []phase{
				{0.15, invalid, nothing},
				{0.15, forgetful, nothing},
				{0.15, restarting, nothing},
				{0.25, healthy, pause},
				{0.05, healthy, nothing},
				{0.25, gone, nothing},
			},
		},
		{
			name: "no queue", direct: true, end: stopped, share: 0.35,
			phases: []phase{
				{0.15, healthy, nothing},
				{0.15, slow, nothing},
				{0.20, hanging, burst},
				{0.10, unavailable, nothing},
				{0.30, gone, nothing},
				{0.10, hanging, nothing},
			},
		},
	}
	last = act{
		name: "queue, to the end", end: drained, share: 0.2,
		phases: []phase{
			{0.35, healthy, nothing},
			{0.40, gone, nothing},
			{0.25, healthy, nothing},
		},
	}
)

// scheduled is an act with its number and its duration.
type scheduled struct {
	act
	number   int
	duration time.Duration
}

// cycleTime is the approximate length of a cycle if there is time for several cycles.
const cycleTime = 8 * time.Minute

// schedule fills the given time with acts.
func schedule(length time.Duration) (acts []scheduled) {
	cycling := time.Duration(float64(length) * (1 - last.share))
	cycles := max(1, int(cycling/cycleTime))
	for range cycles {
		for _, a := range cycle {
			acts = append(acts, scheduled{act: a, duration: time.Duration(a.share * float64(cycling) / float64(cycles))})
		}
	}
	acts = append(acts, scheduled{act: last, duration: length - cycling})
	for i := range acts {
		acts[i].number = i + 1
	}
	return acts
}
