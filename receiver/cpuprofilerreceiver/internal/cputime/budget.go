// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputime

import (
	"sync"
	"time"

	"go.uber.org/zap"
)

// Budget bounds the CPU time of work that can wait and that processes cause: reading
// their files. Half of it is for any process. The other half is a reserve for processes
// that have caused little, so that one with many or large files delays the names of no
// other. What runs over is paid back before more is begun. A nil Budget has no bound.
type Budget struct {
	share  float64 // of a core
	logger *zap.Logger
	now    func() time.Time

	mu              sync.Mutex
	at              time.Time
	common, reserve time.Duration
	// caused is the CPU time that was spent for each process, halved every forgetting.
	caused map[int]time.Duration
	halved time.Time
	hot    map[int]bool
	waits  uint64
	waited time.Time
}

const (
	// mostSaved bounds the unused time that each half saves, for programs that start.
	mostSaved = time.Second
	// little bounds the time that a process may have caused to draw on the reserve.
	little = 100 * time.Millisecond
	// forgetting is the time after which half of what a process caused is forgotten.
	forgetting = time.Minute
	// maxCausing bounds the processes whose time is known. At the bound all are forgotten.
	maxCausing = 4096
	// quiet is the time without a wait after which the next one is logged again.
	quiet = 10 * time.Minute
)

// NewBudget returns a budget of a share of a core; nil, which has no bound, for 0. now is
// the clock.
func NewBudget(share float64, logger *zap.Logger, now func() time.Time) *Budget {
	if share <= 0 {
		return nil
	}
	return &Budget{
		share: share, logger: logger, now: now, at: now(), halved: now(),
		common: mostSaved, reserve: mostSaved, caused: make(map[int]time.Duration),
	}
}

// Favour sets the processes of hot units, which wait for nothing.
func (b *Budget) Favour(hot map[int]bool) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hot = hot
}

// May reports whether work for a process may begin now. If not, it is counted and, once
// an episode, logged. The pid 0 is the host.
func (b *Budget) May(pid int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill()
	if pid == 0 || b.hot[pid] || b.common > 0 || b.reserve > 0 && b.caused[pid] < little {
		return true
	}
	b.waits++
	now := b.now()
	if b.waited.IsZero() || now.Sub(b.waited) > quiet {
		b.logger.Warn("reading the files of programs takes more than its part of max_overhead: names wait, samples do not",
			zap.Float64("part_percent", 100*b.share), zap.Int("pid", pid))
	}
	b.waited = now
	return false
}

// Light reports whether a process has caused little.
func (b *Budget) Light(pid int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.caused[pid] < little
}

// Spend takes the CPU time of work that was done for a process.
func (b *Budget) Spend(pid int, d time.Duration) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill()
	if len(b.caused) >= maxCausing {
		clear(b.caused)
	}
	b.caused[pid] += d
	if b.common > 0 {
		b.common -= d
	} else {
		b.reserve -= d
	}
}

// refill adds what the time since the last call is worth. The lock is held.
func (b *Budget) refill() {
	now := b.now()
	half := time.Duration(b.share / 2 * float64(now.Sub(b.at)))
	b.at = now
	b.common = min(b.common+half, mostSaved)
	b.reserve = min(b.reserve+half, mostSaved)
	for ; now.Sub(b.halved) >= forgetting && len(b.caused) > 0; b.halved = b.halved.Add(forgetting) {
		for pid, d := range b.caused {
			if b.caused[pid] = d / 2; d < time.Millisecond {
				delete(b.caused, pid)
			}
		}
	}
	if len(b.caused) == 0 {
		b.halved = now
	}
}

// Waits returns how often work had to wait.
func (b *Budget) Waits() uint64 {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waits
}
