// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"fmt"
	"path"
	"path/filepath"
	"time"
)

// A Bound names the limit that sets a capacity.
type Bound string

// The limits that can set a capacity.
const (
	ByQuota  Bound = "quota"
	ByCPUSet Bound = "cpuset"
	ByOnline Bound = "cpus online"
)

// Capacity is the amount of CPU that a group may use.
type Capacity struct {
	Cores float64 // may be a fraction
	By    Bound
	Path  string // of the cgroup with the limit, the group's own or an ancestor; empty for ByOnline
}

// A CPUCapacity reads the capacity of one group. The capacity is the minimum of three
// limits: the CPU quotas of its cgroup and of every ancestor, its cpuset, and the CPUs
// online.
type CPUCapacity struct {
	r       *Reader
	quotas  []*level[float64] // the cgroup's own first
	cpusets []*level[int]
}

// OpenCPUCapacity opens the limits on the paths of a group or a process. An ancestor's
// quota limits every cgroup below it, so the cgroups on the paths may be shared.
func (r *Reader) OpenCPUCapacity(p Paths) (*CPUCapacity, error) {
	c := &CPUCapacity{r: r}
	if h, ok := r.tree.owner(CPU); ok {
		c.quotas = r.acquireQuotas(h, p[h])
	}
	if h, ok := r.tree.owner(CPUSet); ok {
		c.cpusets = acquireAll(r, r.cpusets, h, p[h], h.file("cpuset.cpus.effective", "cpuset.effective_cpus"))
	}
	if _, err := r.CPUsOnline(time.Time{}); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (r *Reader) acquireQuotas(h Hierarchy, path string) []*level[float64] {
	if h == V2Tree {
		return acquireAll(r, r.quotas, h, path, "cpu.max")
	}
	return acquireAll(r, r.quotas, h, path, "cpu.cfs_quota_us", "cpu.cfs_period_us")
}

// acquireAll returns the levels on a path, starting with the cgroup itself.
func acquireAll[T any](r *Reader, m map[string]*level[T], h Hierarchy, at string, names ...string) (all []*level[T]) {
	for ; at != "" && at != "/"; at = path.Dir(at) {
		all = append(all, acquire(r, m, r.tree.dir(h, at), at, names...))
	}
	return all
}

// acquire returns the level of a cgroup. names are the files that contain its limit.
func acquire[T any](r *Reader, m map[string]*level[T], dir, path string, names ...string) *level[T] {
	l := m[dir]
	if l == nil {
		l = &level[T]{path: path, key: dir}
		for i, name := range names {
			l.files[i] = r.files.File(filepath.Join(dir, name))
		}
		m[dir] = l
	}
	l.refs++
	return l
}

func release[T any](m map[string]*level[T], levels []*level[T]) {
	for _, l := range levels {
		if l.refs--; l.refs == 0 {
			l.close()
			delete(m, l.key)
		}
	}
}

// Read returns the current capacity. A limit that several groups share is read only once.
func (c *CPUCapacity) Read(now time.Time) (Capacity, error) {
	n, err := c.r.CPUsOnline(now)
	if err != nil {
		return Capacity{}, err
	}
	least := Capacity{Cores: float64(n), By: ByOnline}
	// The nearest cgroup that lists any CPU. Its CPUs are a subset of its ancestors' CPUs.
	for _, l := range c.cpusets {
		n, err := l.get(c.r, now, (*Reader).readCPUs)
		if err != nil {
			return Capacity{}, err
		}
		if n > 0 {
			if float64(n) < least.Cores {
				least = Capacity{Cores: float64(n), By: ByCPUSet, Path: l.path}
			}
			break
		}
	}
	for _, l := range c.quotas {
		cores, err := l.get(c.r, now, (*Reader).readQuota)
		if err != nil {
			return Capacity{}, err
		}
		if cores > 0 && cores < least.Cores {
			least = Capacity{Cores: cores, By: ByQuota, Path: l.path}
		}
	}
	return least, nil
}

// Renew discards the cached limits. Call Renew when a different cgroup has taken over the
// path.
func (c *CPUCapacity) Renew() {
	for _, l := range c.quotas {
		l.renew()
	}
	for _, l := range c.cpusets {
		l.renew()
	}
}

// Close closes the files.
func (c *CPUCapacity) Close() {
	release(c.r.quotas, c.quotas)
	release(c.r.cpusets, c.cpusets)
	c.quotas, c.cpusets = nil, nil
}

// CPUsOnline returns the number of CPUs online.
func (r *Reader) CPUsOnline(now time.Time) (int, error) {
	l := &r.online
	if !l.fresh(now) {
		l.at = now
		l.value, l.err = r.readCPUs(l)
		if l.err == nil && l.value == 0 {
			l.err = fmt.Errorf("read %s: it names no CPU", l.files[0].Path())
		}
	}
	return l.value, l.err
}

// readCPUs returns the number of CPUs in a list, or 0 if it is empty.
func (r *Reader) readCPUs(l *level[int]) (int, error) {
	n, _, err := l.files[0].Read(r.buf)
	if err != nil {
		return 0, err
	}
	count, ok := countCPUs(r.buf[:n])
	if !ok {
		return 0, fmt.Errorf("read %s: malformed list of CPUs %.40q", l.files[0].Path(), r.buf[:n])
	}
	return count, nil
}

// readQuota returns the number of cores that a cgroup's quota allows, or 0 without a quota.
func (r *Reader) readQuota(l *level[float64]) (cores float64, err error) {
	n, _, err := l.files[0].Read(r.buf)
	if err != nil {
		return 0, err
	}
	b := trimSpace(r.buf[:n])
	if bytes.HasPrefix(b, []byte("max")) || bytes.HasPrefix(b, []byte("-")) {
		return 0, nil
	}
	text, rest, _ := bytes.Cut(b, []byte(" "))
	quota, err := parseFigure(text)
	if err != nil {
		return 0, fmt.Errorf("read %s: malformed quota %.40q", l.files[0].Path(), b)
	}
	if l.files[1].Path() != "" { // v1 has the period in a separate file
		n, _, err := l.files[1].Read(r.buf)
		if err != nil {
			return 0, err
		}
		rest = r.buf[:n]
	}
	period, err := parseFigure(rest)
	if err != nil || period == 0 {
		return 0, fmt.Errorf("read the period of %s: malformed %.40q", l.files[0].Path(), rest)
	}
	return float64(quota) / float64(period), nil
}
