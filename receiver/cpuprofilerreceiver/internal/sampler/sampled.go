// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"slices"
	"sync"
	"time"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
)

// These are the names of the pprof profiles whose data a sampler can also measure.
const (
	PprofCPU    = "profile"
	PprofAllocs = "allocs"
)

// maxSampled is the maximum number of processes in a Sampled. When this number is
// reached, all processes are forgotten.
const maxSampled = 1 << 16

// Sampled remembers when each process was last sampled, so that a pprof profile of the
// same kind is not pulled from this process as well. A nil Sampled is always empty. A
// Sampled is safe for concurrent use.
type Sampled struct {
	mu   sync.Mutex
	last map[int]int64 // by pid
}

// NewSampled returns an empty Sampled.
func NewSampled() *Sampled { return &Sampled{last: make(map[int]int64)} }

// Mark records that a process was sampled at a time (CLOCK_MONOTONIC, in nanoseconds).
func (s *Sampled) Mark(pid int, at int64) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.last) >= maxSampled {
		clear(s.last)
	}
	s.last[pid] = max(s.last[pid], at)
}

// Within reports whether any of the processes was sampled within the last d.
func (s *Sampled) Within(pids []int, d time.Duration) bool {
	if s == nil {
		return false
	}
	from := buffer.SystemClock{}.Monotonic() - int64(d)
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(pids, func(pid int) bool {
		last, ok := s.last[pid]
		return ok && last > from
	})
}
