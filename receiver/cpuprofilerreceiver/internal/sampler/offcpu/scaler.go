// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import "github.com/hotprofile/hotprofile/internal/samples"

// scaler gives parts of waits the value that they stand for: their length if every
// switch is sampled, else more; see the package documentation.
type scaler struct {
	// most bounds the parts that are held until their values are known. At the bound
	// they are settled early.
	most int
	// emit is called with each part with a stack, and its value.
	emit func(p *part, typ *samples.Type, period, value int64)

	// One of mean switches is sampled now.
	mean  int64
	sums  map[int]*sums
	held  []part
	spare []*sums
	// stackless is the number of parts whose stack could not be read although every
	// switch is sampled. unshared is the time that no stack was found for.
	stackless uint64
	unshared  int64
}

// sums are of one process's waits, by kind: blocked, preempted.
type sums struct {
	all, sampled [2]int64
	// before and given are running sums of lengths and values, so that rounding
	// errors do not accumulate.
	before, given [2]int64
	// idle is the number of settlements without a sample.
	idle int
}

// maxIdle is the number of settlements for which a process's time waits for a sample
// of it.
const maxIdle = 12

func newScaler(most int, emit func(*part, *samples.Type, int64, int64)) *scaler {
	return &scaler{most: most, emit: emit, mean: 1, sums: make(map[int]*sums)}
}

func kind(p *part) int {
	if p.preempted {
		return 1
	}
	return 0
}

func (s *scaler) add(p *part) {
	if s.mean == 1 {
		if p.stack == nil {
			s.stackless++
			return
		}
		typ := samples.OffCPU
		if p.preempted {
			typ = samples.RunQueue
		}
		s.emit(p, typ, 1, p.length)
		return
	}
	sum := s.sums[p.pid]
	if sum == nil {
		if len(s.sums) >= s.most {
			if p.stack == nil {
				s.unshared += p.length
				return
			}
			s.settle()
			s.dropSums()
		}
		sum = s.newSums()
		s.sums[p.pid] = sum
	}
	k := kind(p)
	sum.all[k] += p.length
	if p.stack == nil {
		return
	}
	sum.sampled[k] += p.length
	if s.held = append(s.held, *p); len(s.held) >= s.most {
		s.settle()
	}
}

func (s *scaler) newSums() *sums {
	if n := len(s.spare); n > 0 {
		sum := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return sum
	}
	return new(sums)
}

// settle gives the held parts their values.
func (s *scaler) settle() {
	for i := range s.held {
		p := &s.held[i]
		sum, k := s.sums[p.pid], kind(p)
		typ := samples.OffCPUScaled
		if p.preempted {
			typ = samples.RunQueueScaled
		}
		sum.before[k] += p.length
		upTo := int64(float64(sum.all[k]) * (float64(sum.before[k]) / float64(sum.sampled[k])))
		if sum.before[k] == sum.sampled[k] {
			upTo = sum.all[k]
		}
		s.emit(p, typ, s.mean, max(upTo-sum.given[k], 1))
		sum.given[k] = upTo
	}
	clear(s.held) // frees processes that are gone
	s.held = s.held[:0]
	for pid, sum := range s.sums {
		any := false
		for k := range sum.all {
			if sum.sampled[k] > 0 {
				sum.all[k], sum.sampled[k], sum.before[k], sum.given[k] = 0, 0, 0, 0
				any = true
			}
		}
		if any {
			sum.idle = 0
		} else {
			sum.idle++
		}
		if sum.all == [2]int64{} && any {
			continue
		}
		if sum.idle > maxIdle {
			s.dropSum(pid, sum)
		}
	}
}

func (s *scaler) dropSum(pid int, sum *sums) {
	s.unshared += sum.all[0] + sum.all[1]
	delete(s.sums, pid)
	*sum = sums{}
	s.spare = append(s.spare, sum)
}

func (s *scaler) dropSums() {
	for pid, sum := range s.sums {
		s.dropSum(pid, sum)
	}
}

// setMean sets that one of mean switches is sampled from now on.
func (s *scaler) setMean(mean int) {
	if s.mean == int64(mean) {
		return
	}
	s.settle()
	if mean == 1 {
		s.dropSums()
	}
	s.mean = int64(mean)
}

// forget drops what is held and returns the number of parts.
func (s *scaler) forget() (held int) {
	held = len(s.held)
	clear(s.held)
	s.held = s.held[:0]
	s.dropSums()
	return held
}
