// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

// A counter is a cumulative CPU time.
type counter interface {
	// Read returns the CPU time. replaced reports whether the counter has started over
	// since the last reading.
	Read(now time.Time) (used time.Duration, replaced bool, err error)
	From() string
	Close()
}

// cpuUse is the CPU time that a unit has used since the first reading. It is read once
// for all monitors that need it.
type cpuUse struct {
	w      *Watcher
	wanted bool

	counter    counter // nil if unavailable
	own        bool    // counter is the cgroup's and not a sum over processes
	noCounter  error
	err        error // error of the current reading
	last       time.Duration
	lastAt     time.Time
	epoch      int // number of starting points; 0 before the first reading
	epochAt    time.Time
	used       time.Duration // never runs backwards
	step, over time.Duration // CPU time and elapsed time since the last reading; 0 if unknown
}

// read adds the CPU time that was used since the last reading. If this reading is a new
// starting point, read adds nothing.
func (c *cpuUse) read(now time.Time) {
	c.step, c.over = 0, 0
	if !c.wanted {
		return
	}
	var switched bool
	if switched, c.err = c.recheck(); c.err != nil {
		return
	}
	if c.counter == nil {
		c.err = c.noCounter
		return
	}
	used, replaced, err := c.counter.Read(now)
	if c.err = err; err != nil {
		return
	}
	if c.epoch == 0 || replaced || switched || used < c.last {
		c.epoch++
		c.epochAt = now
	} else {
		if over := now.Sub(c.lastAt); over > 0 {
			c.step, c.over = used-c.last, over
		}
		c.used += used - c.last
	}
	c.last, c.lastAt = used, now
}

// recheck occasionally checks whether the unit's cgroup belongs to the unit alone. The
// cgroup of a container needs no check, because its name contains the container's id.
func (c *cpuUse) recheck() (switched bool, err error) {
	if !c.w.recheck || c.w.process != nil || c.own && c.w.ownsByName() {
		return false, nil
	}
	before, wasOwn := c.counter, c.own
	if err := c.open(); err != nil {
		return false, err
	}
	if switched = wasOwn != c.own || before == nil; !switched {
		c.counter, before = before, c.counter // keeps the starting point
	}
	if before != nil {
		before.Close()
	}
	return switched, nil
}

// open opens the CPU counter of the unit's cgroup. If there is no such counter, open
// opens the clocks of the unit's processes. After an error, the old counter is kept.
func (c *cpuUse) open() error {
	s := c.w.source
	own, err := s.reader.OpenCPUTime(c.w.unit)
	switch {
	case err == nil:
		c.counter, c.noCounter, c.own = own, nil, true
	case errors.Is(err, ErrGone):
		return err
	case s.foreignPIDs:
		c.counter, c.noCounter, c.own = nil, ForeignPIDs, false
	default:
		c.counter, c.noCounter, c.own = newUnitClock(s, c.w.unit), nil, false
	}
	return nil
}

// cores returns the usage since the last reading, in cores. It returns false if the usage
// is unknown, for example after a new starting point.
func (c *cpuUse) cores() (float64, bool) {
	if c.over <= 0 {
		return 0, false
	}
	return float64(c.step) / float64(c.over), true
}

func (c *cpuUse) from() string {
	if c.counter == nil {
		return ""
	}
	return c.counter.From()
}

func (c *cpuUse) close() {
	if c.counter != nil {
		c.counter.Close()
		c.counter = nil
	}
}

// These monitors measure the CPU time that a unit uses.
const (
	CPUUsage              = "cpu_usage"               // per second
	CPUUtilization        = "cpu_utilization"         // share of the CPU that the unit may use
	CPURequestUtilization = "cpu_request_utilization" // share of the CPU that the unit requests
	CPUHostShare          = "cpu_host_share"          // share of the host's CPU
)

// guardShare is the minimum share of the host's CPU, in percent, that a unit must use for
// host-wide monitors to apply to it. Without this guard, a policy with only host-wide
// monitors would open every gate at once.
const guardShare = 10

func newUsage(w *Watcher, _ string) meter { return &share{w: w, of: oneCore{}} }

func newUtilization(w *Watcher, _ string) meter { return &share{w: w, of: &capacity{w: w}} }

func newRequestUtilization(w *Watcher, _ string) meter {
	return &share{w: w, of: &request{opened[*cgroup.CPURequest]{w: w, open: func() (*cgroup.CPURequest, error) {
		return w.source.reader.OpenCPURequest(w.unit, w.paths)
	}}}}
}

func newHostShare(w *Watcher, _ string) meter { return &share{w: w, of: online{w.source}} }

// share is the meter of CPU time as a share of a number of cores. The number of
// cores may change. It is the capacity, the request, the number of the host's CPUs
// or, for cpu_usage, one core.
type share struct {
	w     *Watcher
	of    cores
	epoch int
	at    time.Time // core seconds are counted up to at
	total float64   // core seconds
}

// cores provides a number of cores that may change between readings.
type cores interface {
	read(now time.Time) (float64, error)
	close()
}

// read adds the core seconds since the last reading. If the number of cores has changed,
// the new number counts for the whole span up to this reading.
func (m *share) read(now time.Time) (num, den float64, restarted bool, err error) {
	u := &m.w.use
	if u.err != nil {
		return 0, 0, false, u.err
	}
	if m.epoch != u.epoch && m.epoch != 0 {
		if of, ok := m.of.(interface{ renew() }); ok {
			of.renew() // the cgroup may have been replaced
		}
	}
	n, err := m.of.read(now)
	if err != nil {
		return 0, 0, false, err
	}
	if m.epoch != u.epoch {
		restarted = m.epoch != 0
		m.epoch, m.at = u.epoch, u.epochAt
	}
	if span := now.Sub(m.at); span > 0 {
		m.total += span.Seconds() * n
	}
	m.at = now
	return u.used.Seconds(), m.total, restarted, nil
}

// moved makes the next reading open the limits of the new cgroup.
func (m *share) moved() { m.of.close() }

func (m *share) from() string { return m.w.use.from() }
func (m *share) close()       { m.of.close() }

// capacity is the number of cores that a unit may use.
type capacity struct {
	w    *Watcher
	open *cgroup.CPUCapacity // nil until opened
}

func (c *capacity) read(now time.Time) (float64, error) {
	if c.open == nil {
		var err error
		if c.open, err = c.w.source.reader.OpenCPUCapacity(c.w.paths); err != nil {
			return 0, err
		}
	}
	found, err := c.open.Read(now)
	if err != nil {
		return 0, err
	}
	c.w.capacity = found
	return found.Cores, nil
}

func (c *capacity) renew() {
	if c.open != nil {
		c.open.Renew()
	}
}

func (c *capacity) close() {
	if c.open != nil {
		c.open.Close()
		c.open = nil
	}
}

// request is the number of cores that a unit requests.
type request struct{ opened[*cgroup.CPURequest] }

func (r *request) read(now time.Time) (float64, error) {
	q, err := r.get()
	if err != nil {
		return 0, err
	}
	return q.Read(now)
}

// online is the number of the host's CPUs that are online.
type online struct{ source *Source }

func (o online) read(now time.Time) (float64, error) {
	n, err := o.source.reader.CPUsOnline(now)
	return float64(n), err
}
func (online) close() {}

// oneCore is a constant capacity of one core for the monitor cpu_usage.
type oneCore struct{}

func (oneCore) read(time.Time) (float64, error) { return 1, nil }

func (oneCore) close() {}
