// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package allocs

import (
	"slices"

	"go.uber.org/zap"
)

const (
	// msgFull is what operators look for; do not change it.
	msgFull  = "Discarding captured allocation sample. Allocation buffer is full. ** THIS WILL RESULT IN LOSS OF PROFILING DATA **"
	msgQuiet = "no allocation of a program was sampled"
	// maxListed is how many reasons a log line shows.
	maxListed = 10
)

// said is what has been said about attaching, so that each thing is said once
// until it changes.
type said struct {
	started bool
	reasons []string
	leftOut int
	before  []string
}

func (s *said) begin() {
	s.reasons, s.leftOut = nil, 0
}

// leaveOut notes why a process is not sampled. Reasons are few: a right, a limit.
func (s *said) leaveOut(err error) {
	s.leftOut++
	if text := err.Error(); len(s.reasons) < maxListed && !slices.Contains(s.reasons, text) {
		s.reasons = append(s.reasons, text)
	}
}

func (s *said) report(logger *zap.Logger, when string, processes, programs int) {
	if !s.started && processes > 0 {
		s.started = true
		logger.Info("allocation sampling started", zap.Int("processes", processes), zap.Int("programs", programs), zap.String("when", when))
	}
	if slices.Equal(s.reasons, s.before) {
		return
	}
	switch {
	case len(s.reasons) > 0:
		logger.Warn("allocations of some processes cannot be sampled; everything else continues",
			zap.Int("processes", s.leftOut), zap.Strings("why", s.reasons))
	case processes > 0:
		logger.Info("allocations of all target processes are sampled now")
	default:
		return // nobody asks now: what was said may still hold
	}
	s.before = s.reasons
}

// episode is a run of losses, said once when it begins and once when it ends.
type episode struct {
	since int64  // 0 while there is none
	lost  uint64 // what had been counted before it
}
