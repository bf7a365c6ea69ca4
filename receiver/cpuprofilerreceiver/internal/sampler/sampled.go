// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import "sync"

// maxSampled bounds the processes that a Sampled remembers. At the bound all are forgotten.
const maxSampled = 1 << 16

// Sampled remembers when each process was sampled last, so that what is sampled is not
// measured in a second way. The nil value remembers nothing. It is safe for concurrent use.
type Sampled struct {
	mu   sync.Mutex
	last map[int]int64 // by pid
}

// NewSampled returns a Sampled that knows no process.
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

// Since reports whether any of the processes was sampled after a time.
func (s *Sampled) Since(pids []int, at int64) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pid := range pids {
		if last, ok := s.last[pid]; ok && last > at {
			return true
		}
	}
	return false
}
