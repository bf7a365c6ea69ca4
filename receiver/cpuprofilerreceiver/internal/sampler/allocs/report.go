// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocs

import (
	"slices"

	"go.uber.org/zap"
)

const (
	msgQuiet = "no allocation of a program was sampled"
	// maxListed is the maximum number of reasons in a log line.
	maxListed = 10
)

// logged remembers the last log lines about attaching, so that only changes are logged.
type logged struct {
	started bool
	reasons []string
	leftOut int
	before  []string
}

// leaveOut records the reason why a process is not sampled. There are few different
// reasons, such as a missing right or a limit.
func (l *logged) leaveOut(err error) {
	l.leftOut++
	if text := err.Error(); len(l.reasons) < maxListed && !slices.Contains(l.reasons, text) {
		l.reasons = append(l.reasons, text)
	}
}

func (l *logged) report(logger *zap.Logger, when string, processes, programs int) {
	if !l.started && processes > 0 {
		l.started = true
		logger.Info("allocation sampling started", zap.Int("processes", processes), zap.Int("programs", programs), zap.String("when", when))
	}
	if slices.Equal(l.reasons, l.before) {
		return
	}
	switch {
	case len(l.reasons) > 0:
		logger.Warn("allocations of some processes cannot be sampled; everything else continues",
			zap.Int("processes", l.leftOut), zap.Strings("why", l.reasons))
	case processes > 0:
		logger.Info("allocations of all target processes are sampled now")
	default:
		return // without processes, the last message may still apply
	}
	l.before = l.reasons
}

// episode is a period in which samples are lost. Its beginning and its end are
// each logged once.
type episode struct {
	since int64  // 0 without an episode
	lost  uint64 // number of lost samples before the episode
}
