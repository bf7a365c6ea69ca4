// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package monitor reads the monitors of units: the CPU usage of a unit, and all other
// figures that a policy can test. Readings are cumulative, so a late or missing reading
// does not distort a mean.
//
// A [Source] opens a [Watcher] per unit. A Watcher reads each monitor in use from the file
// or event that this host has for it. A monitor that fails does not affect the others. An
// unavailable monitor returns the reason, a [cgroup.Unavailable]. Figures of the host, and
// limits of cgroups above several units, are read once for all units.
//
// To add a monitor, write its file, with its name and its meter, and add a line to
// definitions.
//
// The package uses cgroups and processes, and is independent of policies and profiles.
package monitor

import (
	"errors"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/monitor/bottleneck"
)

// A Scope is the kind of a unit: a cgroup or a process.
type Scope uint8

// The scopes. A [Kind] has the union of the scopes that the monitor works in.
const (
	CgroupScope Scope = 1 << iota
	ProcessScope

	anyScope = CgroupScope | ProcessScope
)

// A Kind describes a monitor.
type Kind struct {
	Name string
	// Scale is the factor of values. The value over a span is Scale × ΔNum / ΔDen.
	Scale float64
	// Gauge reports that Num is a momentary value, and Den is not used.
	Gauge bool
	// Sparse reports that Den may stand still because there was no event to count. Such a
	// span has no value and is no gap.
	Sparse bool
	// Whole reports that Num is the value over the whole window of its condition, and Den
	// is 0.
	Whole bool
	// Guard names the monitor that must be at least GuardAtLeast over the same span for
	// this monitor to count. It is empty for most monitors.
	Guard        string
	GuardAtLeast float64
	// Scopes are the kinds of units that the monitor works for.
	Scopes Scope
	// Hidden reports that the monitor only guards other monitors and cannot be named in a
	// policy.
	Hidden bool
}

// A definition is a Kind with the way to read it.
type definition struct {
	Kind
	cpuTime bool // it is made from the unit's CPU time
	open    func(w *Watcher, parameters string) meter
}

// definitions returns all monitors, sorted by name.
func definitions() []definition {
	return []definition{
		{Kind: Kind{Name: CPUBottleneck, Scale: 100, Scopes: anyScope}, cpuTime: true, open: newCPUBottleneck},
		{Kind: Kind{Name: CPUBusiestThread, Scale: 100, Scopes: anyScope}, cpuTime: true, open: newBusiest},
		{Kind: Kind{Name: CPUHostShare, Scale: 100, Scopes: anyScope, Hidden: true}, cpuTime: true, open: newHostShare},
		{Kind: Kind{Name: CPUPressure, Scale: 100, Scopes: CgroupScope}, open: newPressure(cgroup.CPUPressure)},
		{Kind: Kind{Name: CPURequestUtilization, Scale: 100, Scopes: anyScope}, cpuTime: true, open: newRequestUtilization},
		{Kind: Kind{Name: CPUThrottling, Scale: 100, Sparse: true, Scopes: anyScope}, cpuTime: true, open: newThrottling},
		{Kind: Kind{Name: CPUUsage, Scale: 1, Scopes: anyScope}, cpuTime: true, open: newUsage},
		{Kind: Kind{Name: CPUUtilization, Scale: 100, Scopes: anyScope}, cpuTime: true, open: newUtilization},
		{Kind: Kind{Name: HostCPUUtilization, Scale: 100, Guard: CPUHostShare, GuardAtLeast: guardShare, Scopes: anyScope}, open: newHostCPU},
		{Kind: Kind{Name: IOPressure, Scale: 100, Scopes: CgroupScope}, open: newPressure(cgroup.IOPressure)},
		{Kind: Kind{Name: MemoryEvents, Scale: 1, Scopes: CgroupScope}, open: newMemoryEvents},
		{Kind: Kind{Name: MemoryPressure, Scale: 100, Scopes: CgroupScope}, open: newPressure(cgroup.MemoryPressure)},
		{Kind: Kind{Name: MemoryUtilization, Scale: 1, Gauge: true, Scopes: anyScope}, open: newMemory},
		{Kind: Kind{Name: SystemLoad, Scale: 1, Gauge: true, Guard: CPUHostShare, GuardAtLeast: guardShare, Scopes: anyScope}, open: newHostLoad},
		{Kind: Kind{Name: TCPConnectFailures, Scale: 1, Sparse: true, Scopes: anyScope}, open: newTCP(connectFailures)},
		{Kind: Kind{Name: TCPRetransmits, Scale: 100, Sparse: true, Scopes: anyScope}, open: newTCP(retransmits)},
		{Kind: Kind{Name: TCPRTT, Scale: 1000, Sparse: true, Scopes: anyScope}, open: newTCP(roundTrip)},
		{Kind: Kind{Name: ThreadCount, Scale: 1, Gauge: true, Scopes: anyScope}, open: newThreadCount},
	}
}

// definitionOf returns the monitor with a name. The name may have parameters in
// parentheses.
func definitionOf(name string) (d definition, parameters string, ok bool) {
	base, parameters, _ := strings.Cut(strings.TrimSuffix(name, ")"), "(")
	for _, d := range definitions() {
		if d.Name == base {
			d.Name = name
			return d, parameters, true
		}
	}
	return definition{}, "", false
}

// Kinds returns all monitors, sorted by name and without parameters.
func Kinds() (kinds []Kind) {
	for _, d := range definitions() {
		kinds = append(kinds, d.Kind)
	}
	return kinds
}

// KindOf returns the monitor of a name.
func KindOf(name string) (Kind, bool) {
	d, _, ok := definitionOf(name)
	return d.Kind, ok
}

// A Reading is cumulative: the value over the span between two readings is Scale × ΔNum /
// ΔDen. Both start at 0 at a watcher's first reading and never run backwards. The reading
// of a gauge has the momentary value in Num. The reading of memory_utilization has the
// bytes in use in Den.
type Reading struct {
	Time time.Time // when the figures were read; monotonic
	// Num and Den are CPU seconds and the capacity in core seconds for
	// cpu_utilization, CPU seconds and elapsed seconds for cpu_usage, CFS periods
	// for cpu_throttling, and so on.
	Num, Den float64
}

// A Result is the result of one monitor of a unit at one moment.
type Result struct {
	Reading Reading
	// Restarted reports that the counter started over, as when a container restarted under
	// its name. No span may include this reading. It is a new starting point, like the
	// first reading.
	Restarted bool
	// Err is nil, a [cgroup.Unavailable] (the reason why the unit has no such reading),
	// [ErrGone], a [Gap], or the error of a reading that failed. An error never means a
	// zero.
	Err error
}

// A Gap is the reason why a possible reading was not taken. A unit that cannot reach a
// threshold is not measured closely. A Gap is neither counted as failed nor logged.
type Gap = bottleneck.Gap

// ErrGone is returned for a unit after its cgroup was removed or its process ended.
var ErrGone = errors.New("the unit is gone")
