// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package monitor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

const containerID = "4f1c0c6b8a2eaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

// modes returns the kinds of hosts. Each host has 8 CPUs, 16 GiB of memory, a container
// with two threads, and a service.
func modes() []cgroup.Mode { return []cgroup.Mode{cgroup.V1, cgroup.Hybrid, cgroup.V2} }

type modeHost struct {
	*host
	mode cgroup.Mode
}

const (
	container = "/docker/" + containerID
	pid       = 4711
)

func newModeHost(t *testing.T, mode cgroup.Mode) *modeHost {
	h := &modeHost{host: &host{t: t, root: t.TempDir()}, mode: mode}
	h.write("sys/devices/system/cpu/online", "0-7\n")
	h.write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:        1 kB\n")
	h.write("proc/loadavg", "3.50 2.00 1.00 2/345 6789\n")
	h.write("proc/stat", "cpu  1000 0 500 8000 500 0 0 0 0 0\ncpu0 1 2 3\nintr "+strings.Repeat("0 ", 40000)+"\n")
	var paths strings.Builder
	if mode != cgroup.V2 {
		for i, c := range []string{"cpu", "cpuacct", "cpuset", "memory", "pids"} {
			fmt.Fprintf(&paths, "%d:%s:%s\n", i+2, c, container)
			for _, dir := range []string{"", "/docker", container} {
				h.write("sys/fs/cgroup/"+c+dir+"/cgroup.procs", "")
			}
		}
		fmt.Fprintf(&paths, "1:name=systemd:%s\n", container)
		// Meters find the process only in the systemd hierarchy.
		h.write("sys/fs/cgroup/systemd"+container+"/cgroup.procs", fmt.Sprint(pid, "\n"))
		h.write("sys/fs/cgroup/systemd/cgroup.procs", "1\n")
		h.set("cpu", "cpu.shares", "512\n")
		h.set("cpu", "cpu.cfs_quota_us", "200000\n")
		h.set("cpu", "cpu.cfs_period_us", "100000\n")
		h.set("cpu", "cpu.stat", "nr_periods 100\nnr_throttled 10\nthrottled_time 5\n")
		h.above("cpu", "cpu.stat", "nr_periods 1000\nnr_throttled 0\nthrottled_time 5\n")
		h.above("cpu", "cpu.cfs_quota_us", "-1\n")
		h.above("cpu", "cpu.cfs_period_us", "100000\n")
		h.set("cpuacct", "cpuacct.usage", "5000000000\n")
		h.set("memory", "memory.usage_in_bytes", "1610612736\n")
		h.set("memory", "memory.stat", "cache 7\ninactive_file 1\ntotal_cache 7\ntotal_inactive_file 536870912\n")
		h.set("memory", "memory.limit_in_bytes", "4294967296\n")
		h.set("memory", "memory.failcnt", "70\n")
		h.set("memory", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
		h.above("memory", "memory.limit_in_bytes", "9223372036854771712\n")
		h.set("pids", "pids.current", "2\n")
	}
	if mode != cgroup.V1 {
		fmt.Fprintf(&paths, "0::%s\n", container)
		root := "sys/fs/cgroup/"
		controllers := "cpu cpuset memory pids\n"
		if mode == cgroup.Hybrid {
			root, controllers = root+"unified/", "\n"
		}
		h.write(root+"cgroup.controllers", controllers)
		h.write(root+"cgroup.procs", "1\n")
		h.write(root+"docker/cgroup.procs", "")
		h.set("v2", "cgroup.procs", fmt.Sprint(pid, "\n"))
		h.set("v2", "cgroup.threads", fmt.Sprintf("%d\n%d\n", pid, pid+1))
		h.set("v2", "cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n")
		h.set("v2", "memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=2000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n")
		h.set("v2", "io.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=3000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n")
		h.set("v2", "cpu.stat", "usage_usec 5000000\nuser_usec 1\nsystem_usec 1\n")
	}
	if mode == cgroup.V2 {
		h.set("v2", "cpu.stat", "usage_usec 5000000\nuser_usec 1\nsystem_usec 1\nnr_periods 100\nnr_throttled 10\nthrottled_usec 5\n")
		h.above("v2", "cpu.stat", "usage_usec 9000000\nnr_periods 1000\nnr_throttled 0\nthrottled_usec 5\n")
		h.above("v2", "cpu.max", "max 100000\n")
		h.set("v2", "cpu.max", "200000 100000\n")
		h.set("v2", "cpu.weight", "59\n") // 512 shares by the new formula
		h.write(spec, specOf("512"))
		h.set("v2", "memory.current", "1610612736\n")
		h.set("v2", "memory.stat", "anon 1\nfile 7\ninactive_file 536870912\n")
		h.set("v2", "memory.max", "4294967296\n")
		h.set("v2", "memory.events", "low 9\nhigh 20\nmax 70\noom 5\noom_kill 3\noom_group_kill 9\n")
		h.above("v2", "memory.max", "max\n")
		h.set("v2", "pids.current", "2\n")
	}
	h.write(fmt.Sprintf("proc/%d/cgroup", pid), paths.String())
	h.write(fmt.Sprintf("proc/%d/stat", pid), fmt.Sprintf("%d (checkout) S 1 100 100 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 7 0 4242 0 0\n", pid))
	h.write(fmt.Sprintf("proc/%d/statm", pid), "99999 "+fmt.Sprint((1<<30)/os.Getpagesize())+" 1 1 0 1 0\n")
	var err error
	h.tree, err = cgroup.Open(h.root)
	require.NoError(t, err)
	require.Equal(t, mode, h.tree.Mode())
	p, err := h.tree.PathsOf(pid)
	require.NoError(t, err)
	h.unit = h.tree.GroupOf(p)
	require.Equal(t, containerID, h.unit.ContainerID)
	return h
}

// spec is the path of the container's OCI configuration, which contains the CPU shares.
const spec = "run/containerd/io.containerd.runtime.v2.task/moby/" + containerID + "/config.json"

func specOf(shares string) string {
	return `{"ociVersion":"1.2.0","linux":{"resources":{"cpu":{"shares":` + shares + `}}}}`
}

// dir returns the container's directory in a controller's tree or in the v2 tree.
func (h *modeHost) dir(controller string) string {
	switch {
	case controller != "v2":
		return "sys/fs/cgroup/" + controller
	case h.mode == cgroup.Hybrid:
		return "sys/fs/cgroup/unified"
	}
	return "sys/fs/cgroup"
}

func (h *modeHost) set(controller, file, content string) {
	h.write(h.dir(controller)+container+"/"+file, content)
}

// above sets a file of the container's parent cgroup.
func (h *modeHost) above(controller, file, content string) {
	h.write(h.dir(controller)+"/docker/"+file, content)
}

// setEither sets a file of v1. If the v2 tree has the controller, setEither sets the
// equivalent file of v2 instead.
func (h *modeHost) setEither(controller, file, content, file2, content2 string) {
	if h.mode == cgroup.V2 {
		h.set("v2", file2, content2)
		return
	}
	h.set(controller, file, content)
}

func (h *modeHost) open(keep int, scope Scope, monitors ...string) *Watcher {
	s, err := NewSource(h.tree, Options{MaxOpenFiles: keep})
	require.NoError(h.t, err)
	s.clocks, s.foreignPIDs = fixedClocks{}, false
	var w *Watcher
	if scope == ProcessScope {
		w, err = s.Watch(cgroup.Group{}, procfs.Process{PID: pid}, monitors)
	} else {
		w, err = s.Watch(h.unit, procfs.Process{}, monitors)
	}
	require.NoError(h.t, err)
	h.t.Cleanup(func() {
		w.Close()
		s.Close()
		require.Zero(h.t, s.files.Kept(), "every file is closed")
	})
	return w
}

// fixedClocks contains the clocks of a host 100 s after boot. Each process of the host
// has used one second of CPU time.
type fixedClocks struct{}

func (fixedClocks) process(int) (time.Duration, error) { return time.Second, nil }
func (fixedClocks) ticks() uint64                      { return 10_000 }

// valueOf returns the value between two readings.
func valueOf(k Kind, from, to Result) float64 {
	if k.Gauge {
		return to.Reading.Num
	}
	return k.Scale * (to.Reading.Num - from.Reading.Num) / (to.Reading.Den - from.Reading.Den)
}

func kindOf(t *testing.T, name string) Kind {
	k, ok := KindOf(name)
	require.True(t, ok)
	return k
}

// step changes the files of the host as one second of a busy container would change them.
func (h *modeHost) step() {
	h.setEither("cpuacct", "cpuacct.usage", "6000000000\n", "cpu.stat", "usage_usec 6000000\nnr_periods 110\nnr_throttled 14\n")
	if h.mode != cgroup.V2 {
		h.set("cpu", "cpu.stat", "nr_periods 110\nnr_throttled 14\n")
	}
	if h.mode != cgroup.V1 {
		h.set("v2", "cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1300000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n")
		h.set("v2", "memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=2400000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n")
		h.set("v2", "io.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=3500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n")
	}
	h.setEither("memory", "memory.failcnt", "80\n", "memory.events", "low 9\nhigh 24\nmax 80\noom 5\noom_kill 4\noom_group_kill 10\n")
	if h.mode != cgroup.V2 {
		h.set("memory", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
	}
	h.write("proc/stat", "cpu  1100 0 550 8650 600 0 0 0 0 0\ncpu0 1 2 3\n")
}

func TestMonitorsOfAContainerInEachMode(t *testing.T) {
	tests := []struct {
		monitor string
		want    float64
		v1, v2  string // files read with v1 and with v2; hybrid reads the v1 files except for pressures
	}{
		{CPUUsage, 1, "cpuacct/*/cpuacct.usage", "*/cpu.stat"},
		{CPUUtilization, 50, "cpuacct/*/cpuacct.usage", "*/cpu.stat"},
		{CPURequestUtilization, 200, "cpuacct/*/cpuacct.usage", "*/cpu.stat"},
		{CPUHostShare, 12.5, "cpuacct/*/cpuacct.usage", "*/cpu.stat"},
		{CPUThrottling, 40, "cpu/*/cpu.stat", "*/cpu.stat"},
		{CPUPressure, 30, "unified/*/cpu.pressure", "*/cpu.pressure"},
		{MemoryPressure, 40, "unified/*/memory.pressure", "*/memory.pressure"},
		{IOPressure, 50, "unified/*/io.pressure", "*/io.pressure"},
		{MemoryEvents, 1, "memory/*/memory.oom_control", "*/memory.events"},
		{MemoryEventsOf([]string{"max"}), 10, "memory/*/memory.failcnt", "*/memory.events"},
		{MemoryEventsOf([]string{"oom_kill", "max"}), 11, "memory/*/memory.failcnt", "*/memory.events"},
		{MemoryUtilization, 25, "memory/*/memory.usage_in_bytes", "*/memory.current"},
		{ThreadCount, 2, "pids/*/pids.current", "*/pids.current"},
		{HostCPUUtilization, 100 * 150. / 900, "/proc/stat", "/proc/stat"},
		{SystemLoad, 3.5, "/proc/loadavg", "/proc/loadavg"},
	}
	for _, mode := range modes() {
		for _, tt := range tests {
			for _, keep := range []int{64, 0} {
				t.Run(fmt.Sprintf("%s/%s/%d", mode, tt.monitor, keep), func(t *testing.T) {
					h := newModeHost(t, mode)
					w := h.open(keep, CgroupScope, tt.monitor)
					var first, second [1]Result
					now := time.Now()
					w.Read(now, first[:])
					if strings.HasSuffix(tt.monitor, "_pressure") && mode == cgroup.V1 {
						require.Equal(t, cgroup.NotMounted, first[0].Err)
						require.Empty(t, w.From(0))
						return
					}
					require.NoError(t, first[0].Err)
					k := kindOf(t, tt.monitor)
					if !k.Gauge {
						require.Zero(t, first[0].Reading.Num, "the first reading is only a starting point")
					}
					h.step()
					w.Read(now.Add(time.Second), second[:])
					require.NoError(t, second[0].Err)
					require.False(t, second[0].Restarted)
					require.InDelta(t, tt.want, valueOf(k, first[0], second[0]), 1e-9)
					if tt.monitor == MemoryUtilization {
						require.Equal(t, float64(1<<30), second[0].Reading.Den, "bytes without inactive file pages")
					}
					from := tt.v1
					if mode == cgroup.V2 {
						from = tt.v2
					}
					require.Equal(t, strings.ReplaceAll(from, "*", "docker/"+containerID),
						strings.TrimPrefix(strings.TrimPrefix(w.From(0), h.root+"/sys/fs/cgroup/"), h.root))
				})
			}
		}
	}
}

func TestMonitorsOfAProcessInEachMode(t *testing.T) {
	for _, mode := range modes() {
		t.Run(string(mode), func(t *testing.T) {
			h := newModeHost(t, mode)
			monitors := []string{CPUThrottling, CPURequestUtilization, MemoryUtilization, ThreadCount, SystemLoad, CPUUtilization}
			w := h.open(64, ProcessScope, monitors...)
			first, second := make([]Result, len(monitors)), make([]Result, len(monitors))
			now := time.Now()
			w.Read(now, first)
			h.step()
			w.Read(now.Add(time.Second), second)
			// The process itself uses no CPU time. Its cgroup is throttled, but the throttling
			// of the process is 0.
			for i, want := range []float64{0, 0, 25, 7, 3.5, 0} {
				require.NoError(t, second[i].Err, monitors[i])
				require.InDelta(t, want, valueOf(kindOf(t, monitors[i]), first[i], second[i]), 1e-9, monitors[i])
				require.NotEmpty(t, w.From(i))
			}
			require.Equal(t, 2.0, w.Capacity().Cores)
		})
	}
}

func TestThrottlingIsTheLargestOnThePath(t *testing.T) {
	for _, mode := range modes() {
		t.Run(string(mode), func(t *testing.T) {
			h := newModeHost(t, mode)
			quota := func(limit bool) {
				switch {
				case mode == cgroup.V2 && limit:
					h.above("v2", "cpu.max", "800000 100000\n")
				case mode == cgroup.V2:
					h.above("v2", "cpu.max", "max 100000\n")
				case limit:
					h.above("cpu", "cpu.cfs_quota_us", "800000\n")
				default:
					h.above("cpu", "cpu.cfs_quota_us", "-1\n")
				}
			}
			used := 100 * time.Second
			stat := func(own, above string) {
				used += 8 * time.Second // the most that the parent's quota allows in a second
				h.setEither("cpuacct", "cpuacct.usage", fmt.Sprintln(used.Nanoseconds()), "cpu.stat", fmt.Sprintf("usage_usec %d\n%s", used.Microseconds(), own))
				if mode != cgroup.V2 {
					h.set("cpu", "cpu.stat", own)
				}
				controller := "cpu"
				if mode == cgroup.V2 {
					controller = "v2"
				}
				h.above(controller, "cpu.stat", above)
			}
			w := h.open(64, CgroupScope, CPUThrottling)
			var out [1]Result
			now := time.Now()
			read := func() Reading {
				now = now.Add(time.Second)
				w.Read(now, out[:])
				require.NoError(t, out[0].Err)
				return out[0].Reading
			}
			read()
			quota(true)
			r := read()
			require.Zero(t, r.Den)
			stat("nr_periods 110\nnr_throttled 11\n", "nr_periods 1010\nnr_throttled 9\n")
			r = read()
			require.Equal(t, [2]float64{9, 10}, [2]float64{r.Num, r.Den}, "the cgroup above was throttled more")
			stat("nr_periods 120\nnr_throttled 21\n", "nr_periods 1020\nnr_throttled 9\n")
			r = read()
			require.Equal(t, [2]float64{19, 20}, [2]float64{r.Num, r.Den}, "then its own was")
			require.Equal(t, r, Reading{Time: read().Time.Add(-time.Second), Num: 19, Den: 20}, "no period began: no value, and no gap")
			quota(false)
			read()
			stat("nr_periods 130\nnr_throttled 21\n", "nr_periods 1020\nnr_throttled 9\n")
			r = read()
			require.Equal(t, [2]float64{19, 30}, [2]float64{r.Num, r.Den})
			stat("nr_periods 5\nnr_throttled 5\n", "nr_periods 1020\nnr_throttled 9\n")
			r = read()
			require.True(t, out[0].Restarted, "it ran backwards: a new starting point")
			require.Equal(t, [2]float64{19, 30}, [2]float64{r.Num, r.Den})
			stat("nr_periods 9\nnr_throttled 9\n", "nr_periods 1020\nnr_throttled 9\n")
			r = read()
			require.False(t, out[0].Restarted)
			require.Equal(t, [2]float64{23, 34}, [2]float64{r.Num, r.Den})
		})
	}
}

func TestThrottlingOfAnIdleUnitIsNotLost(t *testing.T) {
	h := newModeHost(t, cgroup.V1)
	w := h.open(8, CgroupScope, CPUThrottling, CPUUsage)
	var out [2]Result
	now := time.Now()
	read := func() Result {
		now = now.Add(time.Second)
		w.Read(now, out[:])
		require.NoError(t, out[0].Err)
		return out[0]
	}
	read()
	read()
	h.set("cpu", "cpu.stat", "nr_periods 104\nnr_throttled 12\n")
	for i := range idleReadings {
		if r := read(); r.Reading.Den == 4 {
			require.Equal(t, 2.0, r.Reading.Num)
			break
		}
		require.Less(t, i, idleReadings-1)
	}
	h.set("cpu", "cpu.stat", "nr_periods 114\nnr_throttled 22\n")
	h.set("cpuacct", "cpuacct.usage", "5500000000\n")
	require.Equal(t, Reading{Time: now.Add(time.Second), Num: 12, Den: 14}, read().Reading, "at once when it is busy")
	h.above("cpu", "cpu.cfs_quota_us", "400000\n")
	read()
	h.above("cpu", "cpu.stat", "nr_periods 1010\nnr_throttled 10\n")
	require.Equal(t, Reading{Time: now.Add(time.Second), Num: 12, Den: 24}, read().Reading, "it uses nothing of the quota above")
	h.above("cpu", "cpu.stat", "nr_periods 1020\nnr_throttled 20\n")
	h.set("cpuacct", "cpuacct.usage", "6500000000\n")
	require.Equal(t, Reading{Time: now.Add(time.Second), Num: 14.5, Den: 34}, read().Reading, "a quarter of it, at once")
}

func TestUnavailableWithTheReason(t *testing.T) {
	remove := func(h *modeHost, files ...string) {
		for _, f := range files {
			require.NoError(h.t, os.Remove(filepath.Join(h.root, f)))
		}
	}
	tests := []struct {
		name    string
		mode    cgroup.Mode
		monitor string
		change  func(h *modeHost)
		want    error
	}{
		{"no nr_periods", cgroup.V2, CPUThrottling, func(h *modeHost) {
			h.set("v2", "cpu.stat", "usage_usec 1\n")
			h.above("v2", "cpu.stat", "usage_usec 1\n")
		}, cgroup.NoPeriods},
		{"no cpu.stat", cgroup.V1, CPUThrottling, func(h *modeHost) {
			remove(h, "sys/fs/cgroup/cpu"+container+"/cpu.stat", "sys/fs/cgroup/cpu/docker/cpu.stat")
		}, cgroup.NoPeriods},
		{"no PSI", cgroup.V2, CPUPressure, func(h *modeHost) {
			remove(h, "sys/fs/cgroup"+container+"/cpu.pressure")
		}, cgroup.NoPSI},
		{"PSI off for the cgroup", cgroup.Hybrid, CPUPressure, func(h *modeHost) {
			remove(h, "sys/fs/cgroup/unified"+container+"/cpu.pressure")
			h.set("v2", "cgroup.pressure", "0\n")
		}, cgroup.NoCgroupPSI},
		{"no PSI for a disk", cgroup.V2, IOPressure, func(h *modeHost) {
			remove(h, "sys/fs/cgroup"+container+"/io.pressure")
		}, cgroup.NoPSI},
		{"PSI of memory off for the cgroup", cgroup.V2, MemoryPressure, func(h *modeHost) {
			remove(h, "sys/fs/cgroup"+container+"/memory.pressure")
			h.set("v2", "cgroup.pressure", "0\n")
		}, cgroup.NoCgroupPSI},
		{"no memory controller for events", cgroup.V2, MemoryEvents, func(h *modeHost) {
			remove(h, "sys/fs/cgroup"+container+"/memory.events")
		}, cgroup.NoFile},
		{"events that only v2 counts", cgroup.V1, MemoryEventsOf([]string{"high", "oom"}), func(*modeHost) {}, cgroup.NoMemoryEvents},
		{"an old kernel", cgroup.V1, MemoryEvents, func(h *modeHost) {
			h.set("memory", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n")
		}, cgroup.NoMemoryEvents},
		{"an old kernel, v2", cgroup.V2, MemoryEventsOf([]string{"oom_kill"}), func(h *modeHost) {
			h.set("v2", "memory.events", "low 0\nhigh 0\nmax 0\noom 0\n")
		}, cgroup.NoMemoryEvents},
		{"no memory controller", cgroup.V2, MemoryUtilization, func(h *modeHost) {
			remove(h, "sys/fs/cgroup"+container+"/memory.current")
		}, cgroup.NoFile},
		{"no cpu controller", cgroup.V2, CPURequestUtilization, func(h *modeHost) {
			remove(h, "sys/fs/cgroup"+container+"/cpu.weight")
		}, cgroup.NoFile},
		{"no request", cgroup.V2, CPURequestUtilization, func(h *modeHost) { h.set("v2", "cpu.weight", "1\n") }, cgroup.NoRequest},
		{"idle", cgroup.V2, CPURequestUtilization, func(h *modeHost) { h.set("v2", "cpu.weight", "0\n") }, cgroup.NoRequest},
		{"no request, v1", cgroup.V1, CPURequestUtilization, func(h *modeHost) { h.set("cpu", "cpu.shares", "2\n") }, cgroup.NoRequest},
		{"default weight", cgroup.V2, CPURequestUtilization, func(h *modeHost) { h.set("v2", "cpu.weight", "100\n") }, cgroup.DefaultWeight},
		{"a weight of either formula", cgroup.V2, CPURequestUtilization, func(h *modeHost) { remove(h, spec) }, cgroup.UnknownFormula},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newModeHost(t, tt.mode)
			tt.change(h)
			w := h.open(64, CgroupScope, tt.monitor, CPUUsage)
			var out [2]Result
			for i := range 3 {
				w.Read(time.Now().Add(time.Duration(i)*time.Second), out[:])
				require.Equal(t, tt.want, out[0].Err)
				require.Empty(t, w.From(0))
				require.NoError(t, out[1].Err, "the others are read")
			}
		})
	}
}

func TestUnitInARootOrASharedCgroup(t *testing.T) {
	h := newModeHost(t, cgroup.Hybrid)
	h.unit.ContainerID, h.unit.ID = "", h.unit.Cgroup // a service
	monitors := []string{CPUThrottling, CPURequestUtilization, MemoryUtilization}
	out := make([]Result, len(monitors))
	for c, want := range map[string]error{"/": cgroup.InRoot, "/docker": cgroup.Shared} {
		u := h.unit
		for _, hierarchy := range []cgroup.Hierarchy{cgroup.CPU, cgroup.Memory} {
			u.Paths[hierarchy] = c
		}
		for _, dir := range []string{"cpu", "memory"} {
			h.write("sys/fs/cgroup/"+dir+"/docker/cgroup.procs", "1\n") // a process of another cgroup
			h.write("proc/1/cgroup", "0::/other\n")
		}
		s, err := NewSource(h.tree, Options{MaxOpenFiles: 8})
		require.NoError(t, err)
		w, err := s.Watch(u, procfs.Process{}, monitors)
		require.NoError(t, err)
		w.Read(time.Now(), out)
		for i := range out {
			require.Equal(t, want, out[i].Err, "%s at %s", monitors[i], c)
		}
		w.Close()
		s.Close()
	}
}

func TestAFailingMonitorDoesNotAffectTheOthers(t *testing.T) {
	monitors := []string{CPUUsage, CPUUtilization, CPURequestUtilization, CPUHostShare, CPUThrottling, CPUPressure, MemoryUtilization, ThreadCount, HostCPUUtilization, SystemLoad, MemoryPressure, IOPressure, MemoryEvents}
	files := map[string][]string{ // maps each file to the monitors that fail with it
		"cpu.stat":                              {CPUUsage, CPUUtilization, CPURequestUtilization, CPUHostShare, CPUThrottling},
		"cpu.max":                               {CPUUtilization},
		"cpu.weight":                            {CPURequestUtilization},
		"cpu.pressure":                          {CPUPressure},
		"memory.pressure":                       {MemoryPressure},
		"io.pressure":                           {IOPressure},
		"memory.current":                        {MemoryUtilization},
		"memory.stat":                           {MemoryUtilization},
		"memory.max":                            {MemoryUtilization},
		"pids.current":                          {ThreadCount},
		"../../../../../proc/stat":              {HostCPUUtilization},
		"../../../../../proc/loadavg":           {SystemLoad},
		"../../../../devices/system/cpu/online": {CPUUtilization, CPUHostShare},
	}
	for file, failing := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			h := newModeHost(t, cgroup.V2)
			w := h.open(0, CgroupScope, monitors...)
			out := make([]Result, len(monitors))
			now := time.Now()
			read := func() []Result {
				now = now.Add(time.Second)
				w.Read(now, out)
				return out
			}
			for _, r := range read() {
				require.NoError(t, r.Err)
			}
			path := filepath.Join("sys/fs/cgroup"+container, file)
			good, err := os.ReadFile(filepath.Join(h.root, path))
			require.NoError(t, err)
			for range 60 { // one minute
				h.write(path, "\x00nothing of use\n")
				for i, r := range read() {
					if fails := contains(failing, monitors[i]); !fails {
						require.NoError(t, r.Err, monitors[i])
						continue
					}
					require.Error(t, r.Err, monitors[i])
					var unavailable cgroup.Unavailable
					if file != "cpu.stat" || monitors[i] != CPUThrottling {
						require.False(t, errors.As(r.Err, &unavailable), "%s: it may be read later", monitors[i])
					}
				}
			}
			h.write(path, string(good))
			for i, r := range read() {
				require.NoError(t, r.Err, monitors[i])
			}
		})
	}
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

func TestReadOnlyTreesAreRead(t *testing.T) {
	h := newModeHost(t, cgroup.V2)
	require.NoError(t, filepath.WalkDir(h.root, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chmod(path, 0o555)
	}))
	t.Cleanup(func() {
		_ = filepath.WalkDir(h.root, func(path string, _ os.DirEntry, _ error) error { return os.Chmod(path, 0o755) })
	})
	w := h.open(8, CgroupScope, CPUUsage, CPUUtilization, CPURequestUtilization, CPUThrottling, CPUPressure, MemoryUtilization, ThreadCount)
	out := make([]Result, 7)
	w.Read(time.Now(), out)
	for _, r := range out {
		require.NoError(t, r.Err)
	}
}

func TestCountersThatRunBackwardsAreNewStartingPoints(t *testing.T) {
	h := newModeHost(t, cgroup.V2)
	monitors := []string{CPUPressure, CPUUtilization, CPUHostShare, HostCPUUtilization, MemoryEvents}
	w := h.open(8, CgroupScope, monitors...)
	out := make([]Result, len(monitors))
	now := time.Now()
	read := func() []Result {
		now = now.Add(time.Second)
		w.Read(now, out)
		return append([]Result(nil), out...)
	}
	read()
	h.step()
	before := read()
	h.set("v2", "cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=10\n")
	h.set("v2", "memory.events", "oom 0\noom_kill 1\n")
	h.set("v2", "cpu.stat", "usage_usec 10\n")
	h.write("proc/stat", "cpu  1 0 1 8 0 0 0 0 0 0\n")
	for i, r := range read() {
		require.NoError(t, r.Err)
		require.True(t, r.Restarted, monitors[i])
		require.Equal(t, before[i].Reading.Num, r.Reading.Num, "%s never runs backwards", monitors[i])
	}
	h.set("v2", "cpu.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=500010\n")
	h.set("v2", "memory.events", "oom 2\noom_kill 2\n")
	h.set("v2", "cpu.stat", "usage_usec 1000010\n")
	h.write("proc/stat", "cpu  51 0 1 58 0 0 0 0 0 0\n")
	base := append([]Result(nil), out...)
	for i, r := range read() {
		require.False(t, r.Restarted)
		require.InDelta(t, []float64{50, 50, 12.5, 50, 3}[i], valueOf(kindOf(t, monitors[i]), base[i], r), 1e-9, monitors[i])
	}
}

func TestMemoryWithoutALimitIsAShareOfTheHosts(t *testing.T) {
	for _, mode := range modes() {
		h := newModeHost(t, mode)
		h.setEither("memory", "memory.limit_in_bytes", "9223372036854771712\n", "memory.max", "max\n")
		w := h.open(8, CgroupScope, MemoryUtilization)
		var out [1]Result
		w.Read(time.Now(), out[:])
		require.NoError(t, out[0].Err)
		require.InDelta(t, 100./16, out[0].Reading.Num, 1e-9)
		controller, file := "memory", "memory.limit_in_bytes"
		if mode == cgroup.V2 {
			controller, file = "v2", "memory.max"
		}
		h.above(controller, file, "2147483648\n")
		w.Read(time.Now().Add(time.Second), out[:])
		require.InDelta(t, 50, out[0].Reading.Num, 1e-9, "the limit above counts from the next reading")
	}
}

func TestThreadsAreCountedWithoutAPIDsController(t *testing.T) {
	h := newModeHost(t, cgroup.V2)
	require.NoError(t, os.Remove(filepath.Join(h.root, "sys/fs/cgroup"+container, "pids.current")))
	h.set("v2", "inner/cgroup.threads", "4713\n4714\n")
	w := h.open(8, CgroupScope, ThreadCount)
	var out [1]Result
	w.Read(time.Now(), out[:])
	require.NoError(t, out[0].Err)
	require.Equal(t, 4.0, out[0].Reading.Num, "with those of the cgroups inside the container")
	require.Equal(t, "cgroup.threads", filepath.Base(w.From(0)))
}

func TestRequestFromTheRuntimesRecord(t *testing.T) {
	for _, tt := range []struct {
		weight, shares string
		want           float64
		err            error
	}{
		{"59", "512", 0.5, nil},
		{"20", "512", 0.5, nil},
		{"100", "1024", 1, nil},
		{"39", "1024", 1, nil},
		{"39", "512", 0, cgroup.UnknownFormula}, // changed after the container was created
	} {
		h := newModeHost(t, cgroup.V2)
		h.set("v2", "cpu.weight", tt.weight+"\n")
		h.write(spec, specOf(tt.shares))
		w := h.open(8, CgroupScope, CPURequestUtilization)
		var first, second [1]Result
		now := time.Now()
		w.Read(now, first[:])
		require.Equal(t, tt.err, first[0].Err)
		if tt.err != nil {
			continue
		}
		h.step()
		w.Read(now.Add(time.Second), second[:])
		require.InDelta(t, 100/tt.want, valueOf(kindOf(t, CPURequestUtilization), first[0], second[0]), 1e-9)
	}
}

// TestRequestOfAContainerThatWasResized covers a container whose weight does not match
// its recorded CPU shares any more.
func TestRequestOfAContainerThatWasResized(t *testing.T) {
	h := newModeHost(t, cgroup.V2)
	w := h.open(8, CgroupScope, CPURequestUtilization)
	var first, second, third [1]Result
	now := time.Now()
	w.Read(now, first[:])
	h.set("v2", "cpu.weight", "100\n") // one core by the formula that the record implies
	w.Read(now.Add(time.Second), second[:])
	require.NoError(t, second[0].Err)
	h.step()
	w.Read(now.Add(2*time.Second), third[:])
	require.NoError(t, third[0].Err)
	require.InDelta(t, 100, valueOf(kindOf(t, CPURequestUtilization), second[0], third[0]), 1e-9)
}

func TestBusiestThread(t *testing.T) {
	for _, scope := range []Scope{CgroupScope, ProcessScope} {
		h := newModeHost(t, cgroup.V2)
		clock := func(tid int, ms int) {
			h.write(fmt.Sprintf("proc/%d/schedstat", tid), fmt.Sprintf("%d 5 6\n", ms*1e6))
			h.write(fmt.Sprintf("proc/%d/task/%d/comm", pid, tid), "x\n")
		}
		w := h.open(64, scope, CPUBusiestThread)
		clocks := &cpuClock{}
		w.source.clocks = clocks
		now := time.Now()
		used := 5 * time.Second
		read := func(cores float64) Result {
			var out [1]Result
			now = now.Add(time.Second)
			used += time.Duration(cores * float64(time.Second))
			clocks.used = used
			h.set("v2", "cpu.stat", fmt.Sprintf("usage_usec %d\n", used.Microseconds()))
			w.Read(now, out[:])
			return out[0]
		}
		clock(pid, 1000)
		clock(pid+1, 50000)
		require.Equal(t, NotBusy, read(0).Err, "the usage is not known yet")
		require.Equal(t, NotBusy, read(0.4).Err)
		first := read(1.5)
		require.NoError(t, first.Err)
		require.False(t, first.Restarted)
		clock(pid, 1900)
		clock(pid+1, 50600)
		second := read(1.5)
		require.NoError(t, second.Err)
		require.InDelta(t, 90, valueOf(kindOf(t, CPUBusiestThread), first, second), 1e-9, "the busier of the two, since the last reading")
		clock(pid+1, 51400)
		third := read(0.8)
		require.InDelta(t, 80, valueOf(kindOf(t, CPUBusiestThread), second, third), 1e-9)
		require.Equal(t, NotBusy, read(0.1).Err)
		require.Empty(t, w.slots[0].meter.(*busiest).threads, "no thread of an idle unit is kept")
		clock(pid+1, 55000)
		again := read(2)
		require.NoError(t, again.Err)
		require.True(t, again.Restarted, "no span includes time that was not read")
		require.Equal(t, third.Reading.Num, again.Reading.Num)
		require.NoError(t, os.Remove(filepath.Join(h.root, fmt.Sprintf("proc/%d/schedstat", pid))))
		require.NoError(t, os.RemoveAll(filepath.Join(h.root, fmt.Sprintf("proc/%d/schedstat", pid+1))))
		w.slots[0].meter.(*busiest).pause()
		require.Equal(t, NoThreadClocks, func() error { h.write(fmt.Sprintf("proc/%d/comm", pid+1), ""); return read(2).Err }())
	}
}

// cpuClock returns the same CPU time for every process.
type cpuClock struct {
	fixedClocks
	used time.Duration
}

func (c *cpuClock) process(int) (time.Duration, error) { return c.used, nil }

func TestStartedAt(t *testing.T) {
	h := newModeHost(t, cgroup.V2)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s, err := NewSource(h.tree, Options{})
	require.NoError(t, err)
	defer s.Close()
	s.now = func() time.Time { return at }
	s.clocks, s.foreignPIDs = fixedClocks{}, false
	h.set("v2", "cgroup.procs", "4711\n4712\n4713\n")
	h.write("proc/4712/stat", "4712 (older) S 1 100 100 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 7 0 4000 0 0\n")
	started, err := s.StartedAt(h.unit)
	require.NoError(t, err)
	require.Equal(t, at.Add(-time.Minute), started, "the oldest that still runs; one that has ended does not matter")
	h.set("v2", "cgroup.procs", "")
	_, err = s.StartedAt(h.unit)
	require.ErrorIs(t, err, ErrGone)
}

func FuzzHostFigures(f *testing.F) {
	f.Add([]byte("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1\n"))
	f.Add([]byte("0.25 0.50 1.00 1/2 3\n"))
	f.Add([]byte("12345 678 9 10\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if ticks, err := procfs.ParseCPUTicks(b); err == nil {
			busy, total, _ := ticks.Since(procfs.CPUTicks{})
			require.LessOrEqual(t, min(busy, total), total)
		}
		if load, err := procfs.ParseLoadavg(b); err == nil {
			require.GreaterOrEqual(t, load, 0.0)
		}
		if pages, err := procfs.ParseStatm(b); err == nil {
			require.LessOrEqual(t, pages, uint64(1<<40))
		}
		if ran, err := procfs.ParseSchedstat(b); err == nil {
			require.GreaterOrEqual(t, ran, time.Duration(0))
		}
	})
}
