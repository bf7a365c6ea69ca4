// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputime

import (
	"maps"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Budget limits the CPU time for reading the files of processes, which can be deferred.
// The budget has three parts, so that a process or unit with many or large files does not
// delay the names of all other processes. Half of the budget is for any process. A
// quarter is for hot units, and a quarter is a reserve for processes that have caused
// little work. Work that exceeds the budget is paid back before more work begins. A nil
// Budget sets no limit.
type Budget struct {
	share  float64 // share of one core
	logger *zap.Logger
	now    func() time.Time

	mu                   sync.Mutex
	at                   time.Time
	common, hot, reserve time.Duration
	// caused is the CPU time spent on each process, and on each hot unit while it was hot.
	// The times are halved every minute.
	caused map[causer]time.Duration
	halved time.Time
	// unitOf maps pids to the names of their hot units. units is the set of these names.
	unitOf map[int]string
	units  map[string]struct{}
	waits  uint64
	waited time.Time
}

// causer is a process or a hot unit.
type causer struct {
	pid  int
	unit string
}

const (
	// The common part and the reserve each save at most mostSaved of unused CPU time for new
	// programs. The hot part saves at most mostSavedHot.
	mostSaved    = time.Second / 4
	mostSavedHot = 3 * time.Second / 2
	// mostOwed is the maximum debt of a part. Beyond this debt, the hot part charges the
	// common part, and the common part charges the reserve.
	mostOwed = 2 * time.Second
	// little is the CPU time below which a process or a hot unit may use the reserve.
	little = 100 * time.Millisecond
	// forgetting is the interval at which the times in caused are halved.
	forgetting = time.Minute
	// maxCausing is the maximum number of entries in caused. At the maximum, caused is
	// cleared.
	maxCausing = 4096
	// quiet is the minimum time without a wait before another wait is logged.
	quiet = 10 * time.Minute
)

// NewBudget returns a budget that allows a share of one core. If the share is 0,
// NewBudget returns nil, which sets no limit. now is the clock.
func NewBudget(share float64, logger *zap.Logger, now func() time.Time) *Budget {
	if share <= 0 {
		return nil
	}
	return &Budget{
		share: share, logger: logger, now: now, at: now(), halved: now(),
		common: mostSaved, hot: mostSavedHot, reserve: mostSaved,
		caused: make(map[causer]time.Duration),
	}
}

// Hot reports whether a process belongs to a hot unit.
func (b *Budget) Hot(pid int) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unitOf[pid] != ""
}

// SetHot sets the name of the hot unit of each process, or "" for a process without a hot
// unit. It reports whether the names have changed.
func (b *Budget) SetHot(hot map[int]string) (changed bool) {
	if b == nil {
		return false
	}
	units := make(map[string]struct{})
	for _, unit := range hot {
		if unit != "" {
			units[unit] = struct{}{}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	changed = !maps.Equal(b.unitOf, hot)
	b.unitOf, b.units = hot, units
	return changed
}

// May reports whether work for a process may begin now. If not, May counts the wait and logs
// it once per episode. Work for the pid 0 belongs to the host and may always begin.
func (b *Budget) May(pid int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill()
	if pid == 0 || b.part(pid) != nil {
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

// part returns the part of the budget that pays for work on a process now. It returns nil
// if no part has CPU time left for the process. The caller holds the lock.
func (b *Budget) part(pid int) *time.Duration {
	unit := b.unitOf[pid]
	switch {
	case unit != "" && b.hot > 0 && (b.hot > mostSavedHot/2 || b.withinAverage(unit)):
		return &b.hot
	case unit != "" && b.hot > -mostOwed && b.caused[causer{unit: unit}] < little:
		return &b.hot // the part is in debt, but a hot unit with little work does not wait
	case b.common > 0:
		return &b.common
	case b.reserve > 0 && b.light(pid):
		return &b.reserve
	}
	return nil
}

// light reports whether a process has caused little work. If the process belongs to a hot
// unit, the unit must have caused little work too. The caller holds the lock.
func (b *Budget) light(pid int) bool {
	unit := b.unitOf[pid]
	return b.caused[causer{pid: pid}] < little && (unit == "" || b.caused[causer{unit: unit}] < little)
}

// withinAverage reports whether a hot unit has caused at most the average CPU time of all
// hot units. A unit above the average must leave half of the hot part's savings to other
// units. The caller holds the lock.
func (b *Budget) withinAverage(unit string) bool {
	var all time.Duration
	for u := range b.units {
		all += b.caused[causer{unit: u}]
	}
	return b.caused[causer{unit: unit}]*time.Duration(len(b.units)) <= all
}

// Light reports whether a process has caused little work. If the process belongs to a hot
// unit, the unit must have caused little work too.
func (b *Budget) Light(pid int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.light(pid)
}

// Spend charges the CPU time of work for a process to the budget.
func (b *Budget) Spend(pid int, d time.Duration) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill()
	if len(b.caused)+2 > maxCausing {
		clear(b.caused)
	}
	from := b.part(pid)
	b.caused[causer{pid: pid}] += d
	if unit := b.unitOf[pid]; unit != "" {
		b.caused[causer{unit: unit}] += d
	}
	if from == &b.hot {
		d = take(from, d)
	}
	if from == &b.reserve {
		n := min(d, little)
		b.reserve -= n
		d -= n
	}
	b.reserve -= take(&b.common, d)
}

// take deducts time from a part, down to its maximum debt. It returns
// the time that was not deducted.
func take(part *time.Duration, d time.Duration) (rest time.Duration) {
	n := min(d, max(*part+mostOwed, 0))
	*part -= n
	return d - n
}

// refill adds CPU time to the parts. The added CPU time is the elapsed time since the last
// call, multiplied by the share. The caller holds the lock.
func (b *Budget) refill() {
	now := b.now()
	quarter := time.Duration(b.share / 4 * float64(now.Sub(b.at)))
	b.at = now
	b.common = min(b.common+2*quarter, mostSaved)
	b.hot = min(b.hot+quarter, mostSavedHot)
	b.reserve = min(b.reserve+quarter, mostSaved)
	for ; now.Sub(b.halved) >= forgetting && len(b.caused) > 0; b.halved = b.halved.Add(forgetting) {
		for of, d := range b.caused {
			if b.caused[of] = d / 2; d < time.Millisecond {
				delete(b.caused, of)
			}
		}
	}
	if len(b.caused) == 0 {
		b.halved = now
	}
}

// Waits returns the number of times that work had to wait.
func (b *Budget) Waits() uint64 {
	if b == nil {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waits
}
