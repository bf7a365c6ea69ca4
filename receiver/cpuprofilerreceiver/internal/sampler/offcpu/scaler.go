// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package offcpu

import "github.com/hotprofile/hotprofile/internal/samples"

// scaler computes the values of parts of waits. The value of a part is its length if every
// switch is sampled, and more otherwise. See the package documentation.
type scaler struct {
	// most is the maximum number of accounts, and also the maximum number of held
	// parts. When one of these numbers is reached, settle runs early.
	most int
	// emit is called with each part and its value. If no wait of a thread has a stack, one
	// part without a stack contains the whole time of the thread.
	emit func(p *part, typ *samples.Type, period, value int64)

	accounts map[task]*account
	held     []heldPart
	// period is the largest weight since the last settlement.
	period int64
	// stackless counts parts of waits that have no stack although every switch was
	// sampled. Such a stack was unreadable, or its sample was lost. unshared is the time
	// that was emitted without a stack.
	stackless uint64
	unshared  int64
}

// task identifies a thread.
type task struct{ pid, tid int }

// account sums the waits of a thread since the last settlement, by kind (blocked or
// preempted). It exists from the first wait without a stack or with a weight above 1.
type account struct {
	// all is the total length of the waits without a stack or with a weight above 1.
	// sampled is the sum of length*weight over the waits with a stack and a weight above 1.
	// each is the total length of the waits with a stack and a weight of 1.
	all, sampled, each [2]int64
	// before and given are running sums of shares (sampled or each) and of values. They
	// prevent rounding errors from accumulating.
	before, given [2]int64
	// end and capture are the end and the capture of the last wait without a stack.
	end     [2]int64
	capture *samples.Capture
}

type heldPart struct {
	part
	of *account
}

func newScaler(most int, emit func(*part, *samples.Type, int64, int64)) *scaler {
	return &scaler{most: most, emit: emit, accounts: make(map[task]*account)}
}

// kind returns 0 for a blocked thread, and 1 for a preempted thread.
func kind(p *part) int {
	if p.preempted {
		return 1
	}
	return 0
}

func (s *scaler) add(p *part) {
	var a *account
	if len(s.accounts) > 0 {
		a = s.accounts[task{p.pid, p.tid}]
	}
	if p.weight == 1 && a == nil && p.stack != nil {
		s.emit(p, unscaled[kind(p)], 1, p.length)
		return
	}
	if a == nil {
		if len(s.accounts) >= s.most {
			s.settle()
		}
		a = new(account)
		s.accounts[task{p.pid, p.tid}] = a
	}
	k := kind(p)
	s.period = max(s.period, p.weight)
	switch {
	case p.stack == nil:
		if p.weight == 1 {
			s.stackless++
		}
		a.all[k] += p.length
		a.end[k], a.capture = max(a.end[k], p.end), p.capture
		return
	case p.weight == 1:
		a.each[k] += p.length
	default:
		a.all[k] += p.length
		a.sampled[k] += p.length * p.weight
	}
	if s.held = append(s.held, heldPart{*p, a}); len(s.held) >= s.most {
		s.settle()
	}
}

// unscaled and scaled contain the sample types of parts. The index is the kind of the part.
var (
	unscaled = [2]*samples.Type{samples.OffCPU, samples.RunQueue}
	scaled   = [2]*samples.Type{samples.OffCPUScaled, samples.RunQueueScaled}
)

// value returns the value of a part. The length in account.all is shared among the parts with
// a weight above 1 of the same thread and kind. If there are no such parts, the parts with a
// weight of 1 share this length in addition to their own length.
func (h *heldPart) value() int64 {
	a, k := h.of, kind(&h.part)
	share, shares, all := h.length*h.weight, a.sampled[k], a.all[k]
	if h.weight == 1 {
		if shares > 0 || all == 0 {
			return h.length
		}
		shares, all = a.each[k], all+a.each[k]
	}
	a.before[k] += share
	upTo := all
	if a.before[k] != shares {
		upTo = int64(float64(all) * (float64(a.before[k]) / float64(shares)))
	}
	value := max(upTo-a.given[k], 1)
	a.given[k] = upTo
	return value
}

// settle emits the held parts with their values, and the time of threads without a stack.
func (s *scaler) settle() {
	for i := range s.held {
		h := &s.held[i]
		s.emit(&h.part, scaled[kind(&h.part)], s.period, h.value())
	}
	clear(s.held) // releases processes that have ended
	s.held = s.held[:0]
	for of, a := range s.accounts {
		for k, length := range a.all {
			if length == 0 || a.sampled[k] > 0 || a.each[k] > 0 {
				continue
			}
			s.unshared += length
			p := part{pid: of.pid, tid: of.tid, preempted: k == 1, end: a.end[k], length: length, capture: a.capture}
			s.emit(&p, scaled[k], s.period, length)
		}
	}
	s.dropAccounts()
}

func (s *scaler) dropAccounts() {
	clear(s.accounts)
	s.period = 0
}

// forget drops the held parts and the time of threads without a stack. It returns the
// number of events that would have been emitted.
func (s *scaler) forget() (held int) {
	held = len(s.held)
	for _, a := range s.accounts {
		for k, length := range a.all {
			if length > 0 && a.sampled[k] == 0 && a.each[k] == 0 {
				held++
			}
		}
	}
	clear(s.held)
	s.held = s.held[:0]
	s.dropAccounts()
	return held
}
