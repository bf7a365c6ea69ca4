// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"time"
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
