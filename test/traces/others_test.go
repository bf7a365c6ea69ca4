// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package traces

import "fmt"

// This file reimplements the decisions of three other projects in our own words and code.
// The descriptions come from the documentation of the projects. Where the documentation is
// silent, they come from the observed behaviour of the code, for example for the defaults of
// a library.
//
// Only the decisions are compared, so each project gets the same readings once per second.
// CPU usage is a share of the limit, even if the project measures shares of one core or of
// the machine.

// records is the CPU trigger of Azure Monitor's Application Insights Profiler
// (docs/CpuUsageMonitoring.md and the configuration guide of
// Azure/azuremonitor-opentelemetry-profiler-net). It averages CPU usage over consecutive
// records of a fixed length, and checks the average in a loop. The defaults are one
// sample per second, records of 30 seconds, a loop of 5 seconds, and a threshold of 80.
type records struct {
	threshold    float64
	length, loop int // seconds
}

func (r records) algorithm() algorithm {
	return algorithm{
		fmt.Sprintf("%g %%, records of %d s, looked at every %d s", r.threshold, r.length, r.loop),
		behindGate(func(tr *trace) func(int, second) bool {
			var m meter
			var sum, latest float64
			samples, since, has := 0, -tr.phase, false
			return func(i int, now second) bool {
				if now.down { // the trigger runs inside the process
					m, sum, samples, has, since = meter{}, 0, 0, false, i+1
					return false
				}
				if now.row != nil {
					if v, ok := m.percent(now.row); ok {
						sum, samples = sum+v, samples+1
					}
				}
				if i > since && (i-since)%r.length == 0 && samples > 0 {
					latest, has = sum/float64(samples), true
					sum, samples = 0, 0
				}
				return (i+tr.phase)%r.loop == 0 && has && latest > r.threshold
			}
		}),
	}
}

var recordsDefault = records{80, 30, 5}

func recordsSets() (sets []records) {
	for _, loop := range []int{5, 1} {
		for _, threshold := range []float64{80, 50, 55, 60, 65, 70, 75, 85, 90, 95} {
			for _, length := range []int{30, 5, 10, 15, 20, 45, 60} {
				sets = append(sets, records{threshold, length, loop})
			}
		}
	}
	return sets
}

// lifetime is the policy of Apache SkyWalking's continuous profiling with the Rover
// agent (docs/en/setup/backend/backend-continuous-profiling.md of apache/skywalking and
// docs/en/setup/configuration/profiling.md of apache/skywalking-rover). It reads the
// process's average CPU usage since the start of the process. It counts the seconds of
// the last period in which this average was at or above the threshold. It reads every
// second and checks every 5 seconds. The project has no defaults for threshold, period
// and count, so typical values are used here.
type lifetime struct {
	threshold     float64
	period, count int
}

func (l lifetime) algorithm() algorithm {
	return algorithm{
		fmt.Sprintf("%g %%, %d of %d s", l.threshold, l.count, l.period),
		behindGate(func(tr *trace) func(int, second) bool {
			started, before := -tr.Age.Seconds(), tr.Age.Seconds()*tr.AgeCores
			above := make([]bool, l.period)
			return func(i int, now second) bool {
				slot := i % l.period
				above[slot] = false
				if now.down { // the next process is a new process
					clear(above)
					started, before = float64(i+1), 0
					return false
				}
				if now.row != nil && now.row.At > started {
					average := (before + now.row.CPU) / (now.row.At - started)
					above[slot] = 100*average/now.row.Capacity >= l.threshold
				}
				n := 0
				for _, a := range above {
					if a {
						n++
					}
				}
				return (i+tr.phase)%5 == 0 && n >= l.count
			}
		}),
	}
}

var lifetimeDefault = lifetime{80, 10, 5}

func lifetimeSets() (sets []lifetime) {
	for _, threshold := range []float64{80, 10, 20, 30, 40, 50, 60, 70} {
		for _, period := range []int{10, 5, 20, 30, 60} {
			for _, share := range []float64{0.5, 0.2, 0.8, 1} {
				sets = append(sets, lifetime{threshold, period, int(share*float64(period) + 0.5)})
			}
		}
	}
	return sets
}

// jump is the CPU dump of holmes (WithCPUDump(min, diff, abs) in readme.md of
// mosn/holmes). It periodically reads the CPU usage of one second. It opens the gate
// if the usage is at least the minimum and also meets one of two conditions. Either
// the usage is above an absolute value, or it exceeds the average of the last ten
// readings by a given percentage. The first ten readings never open the gate. The
// defaults are the defaults of the library.
type jump struct {
	least, diff, abs float64 // %
	every            int     // seconds
}

func (j jump) algorithm() algorithm {
	return algorithm{
		fmt.Sprintf("min %g %%, diff %g %%, abs %g %%, every %d s", j.least, j.diff, j.abs, j.every),
		behindGate(func(tr *trace) func(int, second) bool {
			const ring = 10
			var m meter
			var last []float64
			return func(i int, now second) bool {
				if now.down { // holmes runs inside the process
					m, last = meter{}, nil
					return false
				}
				if now.row == nil {
					m = meter{} // a reading must cover a single second
					return false
				}
				v, ok := m.percent(now.row)
				if !ok || (i+tr.phase)%j.every != 0 {
					return false
				}
				v = float64(int(v)) // holmes uses whole percent
				warm, average := len(last) == ring, 0.0
				for _, x := range last {
					average += x / float64(len(last))
				}
				last = append(last, v)
				if len(last) > ring {
					last = last[1:]
				}
				return warm && v >= j.least && (v > j.abs || v >= average*(1+j.diff/100))
			}
		}),
	}
}

var jumpDefault = jump{10, 25, 70, 5}

func jumpSets() (sets []jump) {
	const never = 1e6
	for _, every := range []int{5, 1, 10} {
		for _, least := range []float64{10, 30, 50} {
			for _, diff := range []float64{25, 50, 100, never} {
				for _, abs := range []float64{70, 60, 80, 90} {
					sets = append(sets, jump{least, diff, abs, every})
				}
			}
		}
	}
	return sets
}

func algorithms[T interface{ algorithm() algorithm }](sets []T) (all []algorithm) {
	for _, s := range sets {
		all = append(all, s.algorithm())
	}
	return all
}
