// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package traces

import "fmt"

// What follows states three other ways to decide, in our own words and code: from
// the projects' documentation, and where that is silent (what CPU share is meant,
// the defaults of a library) from what their code was seen to do. Each gets the
// same readings, each second, and CPU as a share of the limit, even where the
// project measures shares of one core or of the machine: what is compared is how
// they decide.

// records is the average over records of fixed length that follow each other,
// looked at in a loop: the CPU trigger of Azure Monitor's Application Insights
// Profiler (docs/CpuUsageMonitoring.md and the configuration guide of
// Azure/azuremonitor-opentelemetry-profiler-net): samples each second, an average
// each 30 seconds, a loop of 5 seconds, threshold 80.
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
				if now.down { // it lives in the process
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

// lifetime counts how many of the last seconds the process's average CPU since
// it started was at the threshold: the policy of Apache SkyWalking's continuous
// profiling with the Rover agent (docs/en/setup/backend/backend-continuous-
// profiling.md of apache/skywalking, docs/en/setup/configuration/profiling.md of
// apache/skywalking-rover): fetched each second, checked every 5 s. The project
// has no default for threshold, period and count; these are what a user may
// well begin with.
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
				if now.down { // the next process is another one
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

// jump looks at the CPU of one second now and then, and opens where it is above
// an absolute value, or above the recent average by a share and not too low:
// holmes (readme.md of mosn/holmes): WithCPUDump(min, diff, abs) and an average
// of the last ten collections, ten of which must have been made first. The
// defaults are those of the library.
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
				if now.down { // it lives in the process
					m, last = meter{}, nil
					return false
				}
				if now.row == nil {
					m = meter{} // its CPU is that of one second
					return false
				}
				v, ok := m.percent(now.row)
				if !ok || (i+tr.phase)%j.every != 0 {
					return false
				}
				v = float64(int(v)) // it reckons in whole percent
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
