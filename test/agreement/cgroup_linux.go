// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package agreement

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

// cpuTimes holds cumulative CPU times and the time at which they were read.
type cpuTimes struct {
	at                  time.Time
	total, user, system time.Duration
}

// since returns the figures for the time between two readings.
func (t cpuTimes) since(before cpuTimes) Figures {
	elapsed := t.at.Sub(before.at)
	cores := func(d time.Duration) float64 { return d.Seconds() / elapsed.Seconds() }
	return Figures{
		Total: cores(t.total - before.total), User: cores(t.user - before.user), System: cores(t.system - before.system),
		Elapsed: elapsed,
	}
}

// twice returns a tool that calls read at the start and at the end.
func twice(name string, totalStep, splitStep time.Duration, read func() (cpuTimes, error)) Tool {
	return Tool{Name: name, Start: func() (func() (Figures, error), error) {
		first, err := read()
		return func() (Figures, error) {
			second, err := read()
			f := second.since(first)
			f.TotalStep, f.SplitStep = totalStep, splitStep
			return f, err
		}, err
	}}
}

// splitStep returns the resolution of a cgroup's user and system times. cpuacct.stat of
// v1 counts in ticks of USER_HZ. cpu.stat of v2 counts in microseconds.
func splitStep(unified bool) time.Duration {
	if unified {
		return 2 * time.Microsecond
	}
	return userTick
}

// Containerd returns a tool that reads the figures with github.com/containerd/cgroups, which
// containerd and Docker also use. The library reads cpuacct.usage and cpuacct.stat on hosts
// with the v1 cpuacct controller. On other hosts, it reads cpu.stat.
func Containerd(u cgroup.Group) Tool {
	unified := cgroups.Mode() == cgroups.Unified
	read := func() (cpuTimes, error) {
		m, err := cgroup1.Load(cgroup1.StaticPath(u.Paths[cgroup.CPUAcct]))
		if err != nil {
			return cpuTimes{}, err
		}
		at := time.Now()
		s, err := m.Stat(cgroup1.IgnoreNotExist)
		if err != nil {
			return cpuTimes{}, err
		}
		use := s.GetCPU().GetUsage()
		return cpuTimes{at, time.Duration(use.GetTotal()), time.Duration(use.GetUser()), time.Duration(use.GetKernel())}, nil
	}
	if unified {
		read = func() (cpuTimes, error) {
			m, err := cgroup2.Load(u.Cgroup)
			if err != nil {
				return cpuTimes{}, err
			}
			at := time.Now()
			s, err := m.Stat()
			if err != nil {
				return cpuTimes{}, err
			}
			micro := func(n uint64) time.Duration { return time.Duration(n) * time.Microsecond }
			return cpuTimes{at, micro(s.GetCPU().GetUsageUsec()), micro(s.GetCPU().GetUserUsec()), micro(s.GetCPU().GetSystemUsec())}, nil
		}
	}
	return twice("containerd/cgroups", 2*time.Microsecond, splitStep(unified), read)
}

// CAdvisor computes the figures in the same way as cAdvisor (InstCpuStats in
// info/v2/conversion.go). It multiplies the growth of the cumulative nanoseconds by 1e9, and
// divides the product by the nanoseconds between the two readings. The result is an integer
// number of nanocores, for the total and for each core.
//
// CAdvisor reads the same files as runc's library. On v1, the files are
// cpuacct.usage_percpu and cpuacct.stat. On v2, the file is cpu.stat, which has no figures
// per core.
func CAdvisor(tree *cgroup.Tree, u cgroup.Group) (Tool, error) {
	h, file := cgroup.CPUAcct, "cpuacct.stat"
	unified := tree.Mount(h) == ""
	if unified {
		h, file = cgroup.V2Tree, "cpu.stat"
	}
	dir, err := tree.Own(u, h)
	if err != nil {
		return Tool{}, fmt.Errorf("find the cgroup that cAdvisor reads: %w", err)
	}
	type reading struct {
		at           time.Time
		cores        []uint64 // nanoseconds; a single total if there are no figures per core
		user, system uint64
	}
	read := func() (r reading, err error) {
		r.at = time.Now()
		stat, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return r, err
		}
		if unified {
			r.user, r.system = 1000*field(stat, "user_usec"), 1000*field(stat, "system_usec")
			r.cores = []uint64{1000 * field(stat, "usage_usec")}
			return r, nil
		}
		r.user, r.system = uint64(userTick)*field(stat, "user"), uint64(userTick)*field(stat, "system")
		perCPU, err := os.ReadFile(filepath.Join(dir, "cpuacct.usage_percpu"))
		if err != nil {
			return r, err
		}
		for _, f := range strings.Fields(string(perCPU)) {
			n, err := strconv.ParseUint(f, 10, 64)
			if err != nil {
				return r, err
			}
			r.cores = append(r.cores, n)
		}
		return r, nil
	}
	return Tool{Name: "cAdvisor", Start: func() (func() (Figures, error), error) {
		last, err := read()
		return func() (Figures, error) {
			now, err := read()
			if err != nil || len(now.cores) != len(last.cores) {
				return Figures{}, errors.Join(errors.New("the number of cores changed, or they could not be read"), err)
			}
			elapsed := now.at.Sub(last.at)
			rate := func(last, now uint64) float64 {
				nanocores := uint64(float64(now-last) / float64(elapsed.Nanoseconds()) * 1e9)
				return float64(nanocores) / 1e9
			}
			f := Figures{User: rate(last.user, now.user), System: rate(last.system, now.system), Elapsed: elapsed}
			for i := range now.cores {
				f.Total += rate(last.cores[i], now.cores[i])
			}
			f.TotalStep, f.SplitStep = 2*time.Microsecond, splitStep(unified)
			return f, nil
		}, err
	}}, nil
}

// field returns the number that follows the given name. Each line of the content is a
// name and a number. field returns 0 if the name is missing.
func field(content []byte, name string) uint64 {
	for line := range strings.Lines(string(content)) {
		if key, value, _ := strings.Cut(strings.TrimSpace(line), " "); key == name {
			n, _ := strconv.ParseUint(value, 10, 64)
			return n
		}
	}
	return 0
}
