// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package monitor

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/cgroup/openfile"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// manyCgroups creates n cgroups without processes. The names of the cgroups look like the
// names of containers or services.
func manyCgroups(b *testing.B, tree *cgroup.Tree, n int, containers bool, cores float64) []cgroup.Group {
	b.Helper()
	var units []cgroup.Group
	for i := range n {
		name := fmt.Sprintf("hotprofile-scale-%d.service", i)
		if containers {
			name = fmt.Sprintf("docker-%064x.scope", i)
		}
		c := hosttest.NewCgroupCalled(b, name)
		if cores > 0 {
			c.SetQuota(b, cores)
		}
		u, ok := tree.GroupAt(c.Path)
		require.True(b, ok)
		units = append(units, u)
	}
	return units
}

// cpuTime returns the CPU time of this process. In contrast to elapsed time, the CPU time
// does not depend on the load of the machine.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measure runs several rounds over n units. It reports the mean CPU time per unit, and
// the elapsed time per unit in the fastest round.
func measure(b *testing.B, n int, round func()) {
	before, least := cpuTime(b), time.Hour
	for b.Loop() {
		began := time.Now()
		round()
		least = min(least, time.Since(began))
	}
	b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(b.N)/float64(n), "cpu-ns/unit")
	b.ReportMetric(float64(least.Nanoseconds())/float64(n), "least-ns/unit")
}

// BenchmarkThousandCgroups measures one reading of 1,000 units in real cgroups, with the
// monitors of the default policies.
func BenchmarkThousandCgroups(b *testing.B) {
	const n = 1000
	b.Run("OnePreadEach", func(b *testing.B) { // the baseline
		s := openHost(b, n)
		files := openfile.NewSet(n)
		var stats []openfile.File
		for _, u := range manyCgroups(b, s.tree, n, true, 0) {
			dir, err := s.tree.Own(u, cgroup.V2Tree)
			require.NoError(b, err)
			stats = append(stats, files.File(dir+"/cpu.stat"))
		}
		buf := make([]byte, 4096)
		round := func() {
			for i := range stats {
				if _, _, err := stats[i].Read(buf); err != nil {
					b.Fatal(err)
				}
			}
		}
		round()
		b.ReportAllocs()
		measure(b, n, round)
		for i := range stats {
			stats[i].Close()
		}
	})
	for _, c := range []struct {
		name       string
		containers bool
		cores      float64
		idle       bool
		keep       int
	}{
		{"Containers", true, 0, false, 8 * n},
		{"ContainersWithQuota", true, 0.5, false, 8 * n},
		{"ContainersWithQuotaIdle", true, 0.5, true, 8 * n},
		{"Services", false, 0, false, 8 * n},
		{"ContainersWithQuotaNoFileKept", true, 0.5, false, 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := openHost(b, c.keep)
			if !c.idle {
				s.idleBelow = 0 // read the empty cgroups like busy cgroups
			}
			units := manyCgroups(b, s.tree, n, c.containers, c.cores)
			watchers := make([]*Watcher, len(units))
			for i, u := range units {
				w, err := s.Watch(u, procfs.Process{}, []string{CPUThrottling, CPUUtilization})
				require.NoError(b, err)
				defer w.Close()
				watchers[i] = w
			}
			var out [2]Result
			now := time.Now()
			round := func() {
				now = now.Add(time.Second)
				for _, w := range watchers {
					w.Read(now, out[:])
					if out[0].Err != nil || out[1].Err != nil {
						b.Fatal(out[0].Err, out[1].Err)
					}
				}
			}
			round()
			b.ReportAllocs()
			measure(b, n, round)
			b.ReportMetric(float64(s.files.Kept()), "files")
		})
	}
}
