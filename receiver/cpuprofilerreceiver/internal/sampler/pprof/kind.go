// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/google/pprof/profile"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// Kind is one of the profiles that net/http/pprof serves.
type Kind struct {
	// Name is the last part of the profile's path.
	Name string
	// Timed reports whether the profile covers a window. The request then contains the
	// length of the window.
	Timed bool
	// values are the profile's values, identified by pprof's name and unit.
	values []value
}

// value is one value of each sample in a pprof profile.
type value struct {
	name, unit string
	typ        *samples.Type
}

const nameCPU = sampler.PprofCPU

// Kinds returns all kinds of profiles.
func Kinds() []Kind {
	return []Kind{
		{nameCPU, true, []value{{"samples", "count", samples.PprofCPU}}},
		{sampler.PprofAllocs, true, []value{{"alloc_objects", "count", samples.PprofAllocObjects}, {"alloc_space", "bytes", samples.PprofAllocSpace}}},
		{"heap", false, []value{{"inuse_objects", "count", samples.PprofInuseObjects}, {"inuse_space", "bytes", samples.PprofInuseSpace}}},
		{"goroutine", false, []value{{"goroutine", "count", samples.PprofGoroutines}}},
		{"threadcreate", false, []value{{"threadcreate", "count", samples.PprofThreads}}},
		{"block", true, []value{{"contentions", "count", samples.PprofBlockContentions}, {"delay", "nanoseconds", samples.PprofBlockDelay}}},
		{"mutex", true, []value{{"contentions", "count", samples.PprofMutexContentions}, {"delay", "nanoseconds", samples.PprofMutexDelay}}},
	}
}

// KindOf returns the kind with the given name.
func KindOf(name string) (Kind, bool) {
	for _, k := range Kinds() {
		if k.Name == name {
			return k, true
		}
	}
	return Kind{}, false
}

// column is one value in a profile's samples, with its type and a divisor.
type column struct {
	index   int
	typ     *samples.Type
	divisor int64
}

var errNotDelta = errors.New("the values are those since the program's start: the endpoint does not know ?seconds, which net/http/pprof does since Go 1.17")

// columns finds the columns of the kind's values in a decoded profile.
func (k Kind) columns(p *profile.Profile) ([]column, error) {
	if k.Timed && k.Name != nameCPU && p.DurationNanos <= 0 {
		return nil, errNotDelta
	}
	index := func(name, unit string) int {
		return slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == name && t.Unit == unit })
	}
	var found []column
	for _, v := range k.values {
		if i := index(v.name, v.unit); i >= 0 {
			found = append(found, column{i, v.typ, 1})
		}
	}
	if k.Name != nameCPU {
		if len(found) < len(k.values) {
			return nil, fmt.Errorf("it is no %s profile: there is no %s/%s among its values", k.Name, k.values[len(found)].name, k.values[len(found)].unit)
		}
		return found, nil
	}
	if t := p.PeriodType; t == nil || t.Type != "cpu" || t.Unit != "nanoseconds" || p.Period <= 0 {
		return nil, errors.New("it is no CPU profile: its period is not of cpu/nanoseconds")
	}
	if i := index("cpu", "nanoseconds"); len(found) == 0 && i >= 0 { // some programs write only the time
		return []column{{i, samples.PprofCPU, p.Period}}, nil
	}
	if len(found) == 0 {
		return nil, errors.New("it is no CPU profile: there is neither samples/count nor cpu/nanoseconds among its values")
	}
	return found, nil
}

// period returns the period of a profile's samples.
func period(p *profile.Profile) int64 { return max(p.Period, 1) }

// maxCPUs is larger than the number of CPUs of any host. A profile is invalid if it
// contains more samples than this many CPUs can produce in its window.
const maxCPUs = 4096

// plausible reports whether a CPU profile can contain n samples.
func plausible(n, window, period int64) bool {
	return float64(n) <= maxCPUs*(float64(window)/float64(period)+1) && n <= math.MaxInt32
}

// Sampler returns the name of the sampler for the counters.
func (k Kind) Sampler() string { return k.values[0].typ.Sampler }
