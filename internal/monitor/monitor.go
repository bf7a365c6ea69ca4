// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"errors"
	"time"
)

// The names of the monitors.
const (
	CPUUtilization        = "cpu_utilization"
	CPUUsage              = "cpu_usage"
	CPURequestUtilization = "cpu_request_utilization"
	CPUHostShare          = "cpu_host_share"
	CPUBottleneck         = "cpu_bottleneck"
	CPUBusiestThread      = "cpu_busiest_thread"
	CPUThrottling         = "cpu_throttling"
	CPUPressure           = "cpu_pressure"
	HostCPUUtilization    = "host_cpu_utilization"
	MemoryUtilization     = "memory_utilization"
	ThreadCount           = "thread_count"
	SystemLoad            = "system_load"
)

// A Scope is what a unit is: a cgroup or a process.
type Scope uint8

// The scopes; a [Kind] holds the union of those it works in.
const (
	CgroupScope Scope = 1 << iota
	ProcessScope

	anyScope = CgroupScope | ProcessScope
)

// guardShare is the share of the host's CPU, in percent, that a unit has to use
// for what is the same for all units to count for it: a policy with such a
// monitor alone would otherwise open every gate at once.
const guardShare = 10

// A Kind describes a monitor.
type Kind struct {
	Name string
	// Unit is what its value and thresholds are in: "%", "cores", "threads",
	// "load".
	Unit string
	// Scale: the value over a span is Scale × ΔNum / ΔDen.
	Scale float64
	// Gauge says that Num is a momentary value, and Den nothing.
	Gauge bool
	// Sparse says that Den may stand still, because nothing it counts happened:
	// such a span has no value, and is no gap either.
	Sparse bool
	// Guard names the monitor that has to be at least GuardAtLeast over the same
	// span for this one to count; empty for most.
	Guard        string
	GuardAtLeast float64
	// Scopes are those it works in.
	Scopes Scope
	// Hidden is for a monitor that only guards others and cannot be named in a
	// policy.
	Hidden bool
}

// Kinds returns the monitors that there are, sorted by name.
func Kinds() []Kind {
	return []Kind{
		{Name: CPUBottleneck, Unit: "%", Scale: 100, Scopes: anyScope},
		{Name: CPUBusiestThread, Unit: "%", Scale: 100, Scopes: anyScope},
		{Name: CPUHostShare, Unit: "%", Scale: 100, Scopes: anyScope, Hidden: true},
		{Name: CPUPressure, Unit: "%", Scale: 100, Scopes: CgroupScope},
		{Name: CPURequestUtilization, Unit: "%", Scale: 100, Scopes: anyScope},
		{Name: CPUThrottling, Unit: "%", Scale: 100, Sparse: true, Scopes: anyScope},
		{Name: CPUUsage, Unit: "cores", Scale: 1, Scopes: anyScope},
		{Name: CPUUtilization, Unit: "%", Scale: 100, Scopes: anyScope},
		{Name: HostCPUUtilization, Unit: "%", Scale: 100, Guard: CPUHostShare, GuardAtLeast: guardShare, Scopes: anyScope},
		{Name: MemoryUtilization, Unit: "%", Scale: 1, Gauge: true, Scopes: anyScope},
		{Name: SystemLoad, Unit: "load", Scale: 1, Gauge: true, Guard: CPUHostShare, GuardAtLeast: guardShare, Scopes: anyScope},
		{Name: ThreadCount, Unit: "threads", Scale: 1, Gauge: true, Scopes: anyScope},
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
// run backwards. That of a gauge is the value at the moment, in Num.
type Reading struct {
	Time time.Time // monotonic; when the figures were read
	// Num and Den are, for cpu_utilization, CPU seconds and the capacity in core
	// seconds; for cpu_usage, CPU seconds and the seconds gone by; for
	// cpu_throttling, CFS periods; and so on.
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
	// unit, and why), [ErrGone], a [Gap], or a reading that failed. None of them
	// is a zero.
	Err error
}

// A Gap is why a reading was not taken though it could have been: a unit that
// cannot reach a threshold is not looked at closely. Nothing failed, so it is
// neither counted as that nor worth a word.
type Gap string

// Error returns the reason.
func (g Gap) Error() string { return string(g) }

// ErrGone says that the unit is no more: its cgroup was removed, or its process
// has ended.
var ErrGone = errors.New("the unit is gone")
