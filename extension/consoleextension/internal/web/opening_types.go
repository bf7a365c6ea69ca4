// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/flame"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/profilefiles"
	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// profileType describes a type of profile.
type profileType struct {
	Name  string // name in configurations and URLs
	Title string
	What  string // meaning of the values, for "12 s of …" and "Share of all …"
	// InKernel means that all stacks end in the kernel, either in the scheduler or in one
	// of a few system calls. In this case, sorting by self is useless.
	InKernel bool
}

// usualOrder returns the default order of the table of functions.
func (t profileType) usualOrder() flame.Order {
	if t.InKernel {
		return flame.ByTotal
	}
	return flame.BySelf
}

// profileTypes lists the types in the order in which pages show them. Pages show all other
// types after these types.
var profileTypes = []profileType{
	{"cpu", "CPU", "CPU time", false},
	{"wall", "Wall clock", "time of threads, running or not", false},
	{"off_cpu", "Waiting", "time that threads waited", true},
	{"runqueue", "Waiting for a CPU", "time that threads could run and had no CPU", true},
	{"alloc_space", "Allocated memory", "memory that was allocated", false},
	{"alloc_objects", "Allocated objects", "objects that were allocated", false},
	{"inuse_space", "Memory in use", "memory in use", false},
	{"inuse_objects", "Objects in use", "objects in use", false},
	{"mutex_delay", "Waiting for locks", "time that goroutines waited for locks", false},
	{"mutex_contentions", "Contended locks", "waits for locks", false},
	{"block_delay", "Blocked goroutines", "time that goroutines were blocked", false},
	{"block_contentions", "Blocking operations", "operations that blocked", false},
	{"goroutines", "Goroutines", "goroutines", false},
	{"goroutine", "Goroutines", "goroutines", false},
	{"threads", "Threads", "threads that were created", false},
	{"net_sent", "Network: sent", "bytes that were sent", true},
	{"net_received", "Network: received", "bytes that were received", true},
	{"tcp_connects", "Network: connects", "connections", true},
	{"tcp_connect_failures", "Network: failed connects", "failed connections", true},
}

func typeRank(name string) int {
	if i := slices.IndexFunc(profileTypes, func(t profileType) bool { return t.Name == name }); i >= 0 {
		return i
	}
	return len(profileTypes)
}

// typeOf returns the description of a type. An unknown type is described by its name.
func typeOf(name string) profileType {
	if i := typeRank(name); i < len(profileTypes) {
		return profileTypes[i]
	}
	title := cmp.Or(cutText(40, strings.ReplaceAll(name, "_", " ")), "Samples")
	return profileType{Name: name, Title: title, What: title}
}

// sortProfiles returns the profiles of an opening in the order of the tabs.
func sortProfiles(profiles []store.ProfileInfo) []store.ProfileInfo {
	profiles = slices.Clone(profiles)
	slices.SortStableFunc(profiles, func(a, b store.ProfileInfo) int {
		return cmp.Or(cmp.Compare(typeRank(a.Type), typeRank(b.Type)), profilefiles.CompareKeys(a.ProfileKey, b.ProfileKey))
	})
	return profiles
}

// profileTitle returns the title of a profile. The title contains the origin or the
// profiler if other profiles of the same type have a different one. The origin pprof is
// always part of the title.
func profileTitle(p store.ProfileKey, all []store.ProfileInfo) string {
	title := typeOf(p.Type).Title
	origins, scopes := false, false
	for _, other := range all {
		if other.Type == p.Type {
			origins = origins || other.Origin != p.Origin
			scopes = scopes || other.Origin == p.Origin && other.Scope != p.Scope
		}
	}
	switch {
	case p.Origin == attr.OriginPprof:
		title += ", pulled from the program"
	case origins && p.Origin != "":
		title += ", " + cutText(30, p.Origin)
	case origins:
		title += ", sampled"
	}
	if scopes {
		title += ", by " + cutText(30, p.Scope)
	}
	return title
}

// secondUnits maps each unit of time to the number of units in a second.
var secondUnits = map[string]float64{"nanoseconds": 1e9, "microseconds": 1e6, "milliseconds": 1e3, "seconds": 1}

// amount formats a value of a profile with its unit.
func amount(unit string, v int64) string {
	if perSecond, ok := secondUnits[unit]; ok {
		return seconds3(float64(v) / perSecond)
	}
	switch unit {
	case "bytes":
		return formatBytes(v)
	case "count", "":
		return count(v)
	}
	return count(v) + " " + cutText(20, unit)
}

// seconds3 returns a time in one unit, such as 93.2 s instead of 1 min 33 s.
func seconds3(v float64) string {
	switch {
	case v == 0:
		return "0 s"
	case v < 1e-6:
		return number(v*1e9) + " ns"
	case v < 1e-3:
		return number(v*1e6) + " µs"
	case v < 1:
		return number(v*1e3) + " ms"
	}
	return number(v) + " s"
}

// percent returns a share as a percentage.
func percent(share float64) string {
	v := 100 * share
	switch {
	case v == 0:
		return "0 %"
	case v < 0.01:
		return "< 0.01 %"
	case v < 10:
		return strconv.FormatFloat(v, 'f', 2, 64) + " %"
	}
	return strconv.FormatFloat(v, 'f', 1, 64) + " %"
}

// points returns the difference between two shares in percentage points, with a sign.
func points(here, there float64) string {
	v := 100 * (here - there)
	if math.Abs(v) < 0.005 {
		return "±0"
	}
	digits := 2
	if math.Abs(v) >= 10 {
		digits = 1
	}
	return strings.Replace(fmt.Sprintf("%+.*f", digits, v), "-", "−", 1)
}

// change returns the CSS class for the difference between two shares, from less3 to
// more3. The class is same if the difference may be due to chance. The digit depends on
// the ratio of the difference to the sum of the shares. flame.js uses the same steps.
func change(here, there float64, samples flame.Value) string {
	if here+there == 0 || flame.Chance(here, there, samples) {
		return "same"
	}
	r := (here - there) / (here + there)
	step := "1"
	switch a := math.Abs(r); {
	case a < 0.1:
		return "same"
	case a >= 0.7:
		step = "3"
	case a >= 0.35:
		step = "2"
	}
	if r < 0 {
		return "less" + step
	}
	return "more" + step
}
