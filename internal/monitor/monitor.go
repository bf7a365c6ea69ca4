// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package monitor reads the monitors of units. A monitor is a value that a policy can test
// for a unit, such as the unit's CPU usage. Most readings are cumulative, so a late or
// missing reading does not distort a mean.
//
// A [Source] opens a [Watcher] per unit. A Watcher reads each monitor from a file or an
// event of the host. If a monitor fails, the other monitors are not affected. If a monitor
// is unavailable, its result contains the reason as a [cgroup.Unavailable]. Values of the
// host, and limits of cgroups above several units, are read once for all units.
//
// To add a monitor, create a file with its name and its meter, and add a line to
// definitions.
//
// The package uses cgroups and processes. It is independent of policies and profiles.
package monitor

import (
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/monitor/bottleneck"
)

// A Scope is a kind of unit. A unit is a cgroup or a process.
type Scope uint8

// These are the scopes. A [Kind] combines the scopes that its monitor supports.
const (
	CgroupScope Scope = 1 << iota
	ProcessScope
	WindowsScope // a process on Windows

	linuxScope = CgroupScope | ProcessScope
	anyScope   = linuxScope | WindowsScope
)

// A Kind describes a monitor.
type Kind struct {
	Name string
	// Scale is the factor of the value. The value over a span is Scale × ΔNum / ΔDen.
	Scale float64
	// Gauge means that Num is an instantaneous value. Den is then not used.
	Gauge bool
	// Sparse means that Den does not grow while there are no events to count. A span without
	// events is therefore not a gap.
	Sparse bool
	// Whole means that Num is the value over the condition's whole window, and that Den is
	// 0.
	Whole bool
	// Guard is the name of another monitor. This monitor counts only while the value of the
	// guard over the same span is at least GuardAtLeast. Guard is empty if the monitor has no
	// guard.
	Guard        string
	GuardAtLeast float64
	// Scopes are the kinds of units that the monitor supports.
	Scopes Scope
	// Hidden means that the monitor serves only as a guard of other monitors. Policies cannot
	// use a hidden monitor.
	Hidden bool
}

// A definition is a Kind and the function that opens its meter.
type definition struct {
	Kind
	cpuTime bool // the monitor uses the unit's CPU time
	open    func(w *Watcher, parameters string) meter
}

// definitions returns all monitors, sorted by name.
func definitions() []definition {
	return []definition{
		{Kind: Kind{Name: CPUBottleneck, Scale: 100, Scopes: linuxScope}, cpuTime: true, open: newCPUBottleneck},
		{Kind: Kind{Name: CPUBusiestThread, Scale: 100, Scopes: linuxScope}, cpuTime: true, open: newBusiest},
		{Kind: Kind{Name: CPUHostShare, Scale: 100, Scopes: anyScope, Hidden: true}, cpuTime: true, open: newHostShare},
		{Kind: Kind{Name: CPUPressure, Scale: 100, Scopes: CgroupScope}, open: newPressure(cgroup.CPUPressure)},
		{Kind: Kind{Name: CPURequestUtilization, Scale: 100, Scopes: linuxScope}, cpuTime: true, open: newRequestUtilization},
		{Kind: Kind{Name: CPUThrottling, Scale: 100, Sparse: true, Scopes: linuxScope}, cpuTime: true, open: newThrottling},
		{Kind: Kind{Name: CPUUsage, Scale: 1, Scopes: anyScope}, cpuTime: true, open: newUsage},
		{Kind: Kind{Name: CPUUtilization, Scale: 100, Scopes: anyScope}, cpuTime: true, open: newUtilization},
		{Kind: Kind{Name: HostCPUUtilization, Scale: 100, Guard: CPUHostShare, GuardAtLeast: guardShare, Scopes: anyScope}, open: newHostCPU},
		{Kind: Kind{Name: IOPressure, Scale: 100, Scopes: CgroupScope}, open: newPressure(cgroup.IOPressure)},
		{Kind: Kind{Name: MemoryEvents, Scale: 1, Scopes: CgroupScope}, open: newMemoryEvents},
		{Kind: Kind{Name: MemoryPressure, Scale: 100, Scopes: CgroupScope}, open: newPressure(cgroup.MemoryPressure)},
		{Kind: Kind{Name: MemoryUtilization, Scale: 1, Gauge: true, Scopes: anyScope}, open: newMemory},
		{Kind: Kind{Name: SystemLoad, Scale: 1, Gauge: true, Guard: CPUHostShare, GuardAtLeast: guardShare, Scopes: linuxScope}, open: newHostLoad},
		{Kind: Kind{Name: TCPConnectFailures, Scale: 1, Sparse: true, Scopes: linuxScope}, open: newTCP(connectFailures)},
		{Kind: Kind{Name: TCPRetransmits, Scale: 100, Sparse: true, Scopes: linuxScope}, open: newTCP(retransmits)},
		{Kind: Kind{Name: TCPRTT, Scale: 1000, Sparse: true, Scopes: linuxScope}, open: newTCP(roundTrip)},
		{Kind: Kind{Name: ThreadCount, Scale: 1, Gauge: true, Scopes: anyScope}, open: newThreadCount},
	}
}

// meter opens the meter of a monitor.
func (d definition) meter(w *Watcher, parameters string) meter {
	if open := ofWindows[d.Name]; open != nil {
		return open(w)
	}
	return d.open(w, parameters)
}

// definitionOf returns the definition of the monitor with the given name. The name may
// end with parameters in parentheses.
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

// KindOf returns the monitor with a name. The name may end with
// parameters in parentheses.
func KindOf(name string) (Kind, bool) {
	d, _, ok := definitionOf(name)
	return d.Kind, ok
}

// A Reading is the result of reading a monitor once. Num and Den are cumulative. Both
// are 0 at the first reading of a watcher and never decrease. The value between two
// readings is Scale × ΔNum / ΔDen.
//
// The Num of a gauge is the momentary value. The Den of memory_utilization is
// the number of bytes in use.
type Reading struct {
	Time time.Time // when the values were read; monotonic
	// The units depend on the monitor. For cpu_utilization, Num is in CPU seconds, and
	// Den is in core seconds of capacity. For cpu_usage, Num is in CPU seconds, and Den
	// is in elapsed seconds. For cpu_throttling, both are in CFS periods.
	Num, Den float64
}

// A Result is the result of reading one monitor of a unit.
type Result struct {
	Reading Reading
	// Restarted reports whether the counter started over, for example because a container
	// restarted under its name. Such a reading is a new starting point, like the first
	// reading, and no span may include it.
	Restarted bool
	// Err is nil, or explains why there is no reading. It is a [cgroup.Unavailable],
	// [ErrGone], a [Gap], or the error of a failed reading. An error never means that
	// the value is zero.
	Err error
}

// A Gap is the reason why a reading was skipped although it was possible. For example, a
// unit is not measured closely if it cannot reach a threshold. A Gap is not a failure and
// is not logged.
type Gap = bottleneck.Gap

// ErrGone is returned for a unit after its cgroup was removed or its process ended.
var ErrGone = cgroup.ErrGone
