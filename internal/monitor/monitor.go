// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

// The names of the monitors.
const (
	CPUUtilization = "cpu_utilization"
	CPUUsage       = "cpu_usage"
)

// A Scope is what a unit is: a cgroup or a process.
type Scope uint8

// The scopes; a [Kind] holds the union of those it works in.
const (
	CgroupScope Scope = 1 << iota
	ProcessScope
)

// A Kind describes a monitor.
type Kind struct {
	Name   string
	Unit   string  // in which its value and thresholds are: "%", "cores"
	Scale  float64 // value over a span = Scale × ΔNum / ΔDen
	Scopes Scope
}

// Kinds returns the monitors that there are, sorted by name.
func Kinds() []Kind {
	return []Kind{
		{Name: CPUUsage, Unit: "cores", Scale: 1, Scopes: CgroupScope | ProcessScope},
		{Name: CPUUtilization, Unit: "%", Scale: 100, Scopes: CgroupScope | ProcessScope},
	}
}

// KindOf returns the monitor of a name.
func KindOf(name string) (Kind, bool) {
	for _, k := range Kinds() {
		if k.Name == name {
			return k, true
		}
	}
	return Kind{}, false
}

// A Reading is cumulative: the value over a span between two of them is
// Scale × ΔNum / ΔDen. Both start at 0 at a watcher's first reading and never
// run backwards.
type Reading struct {
	Time time.Time // monotonic; when the figures were read
	// Num is CPU seconds. Den is, for cpu_utilization, the capacity in core
	// seconds, and for cpu_usage the seconds gone by.
	Num, Den float64
}

// A Result is what one monitor of a unit says at one moment.
type Result struct {
	Reading Reading
	// Restarted says that what was counted began anew (a container restarted
	// under its name), so that no span may reach across this reading: it is a
	// new baseline, as the first one is.
	Restarted bool
	// Err is nil, a [cgroup.Unavailable] (this monitor says nothing about this
	// unit, and why), [ErrGone], or a reading that failed: a gap, not a zero.
	Err error
}

// ErrGone says that the unit is no more: its cgroup was removed, or its process
// has ended.
var ErrGone = errors.New("the unit is gone")

// A Process is one process, told apart from a later one with the same pid.
type Process struct {
	PID int
	// Start is when it started, in clock ticks since boot (field 22 of
	// /proc/PID/stat).
	Start uint64
}

// A Source takes readings of units. It belongs to one goroutine.
type Source struct{}

// NewSource returns a source that reads below the tree's root and keeps at most
// maxOpen files open.
func NewSource(tree *cgroup.Tree, maxOpen int) (*Source, error) { return nil, cgroup.NeedsLinux }

// Close closes all files.
func (s *Source) Close() {}

// A Watcher reads the monitors of one unit.
type Watcher struct{}

// WatchUnit opens the monitors of a unit that is a cgroup, by their names. A
// monitor that is unavailable is no error here: its results say so.
func (s *Source) WatchUnit(u cgroup.Unit, monitors []string) (*Watcher, error) {
	return nil, cgroup.NeedsLinux
}

// WatchProcess opens the monitors of a unit that is a process. It returns
// [ErrGone] where the pid is no process, or another one by now.
func (s *Source) WatchProcess(p Process, monitors []string) (*Watcher, error) {
	return nil, cgroup.NeedsLinux
}

// Read fills out, which has one element per monitor in the order in which they
// were opened. It allocates nothing. Now is when it is called.
func (w *Watcher) Read(now time.Time, out []Result) {}

// Capacity returns what the last reading found.
func (w *Watcher) Capacity() cgroup.Capacity { return cgroup.Capacity{} }

// Close gives up the files.
func (w *Watcher) Close() {}
