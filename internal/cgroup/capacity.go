// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"fmt"
	"path"
	"path/filepath"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup/openfile"
)

// A Bound names the limit that sets a capacity.
type Bound string

// These are the limits that can set a capacity.
const (
	ByQuota  Bound = "quota"
	ByCPUSet Bound = "cpuset"
	ByOnline Bound = "cpus online"
)

// Capacity is the amount of CPU that a group may use.
type Capacity struct {
	Cores float64 // may be a fraction
	By    Bound
	Path  string // path of the cgroup that sets the limit; empty for ByOnline
}

// A CPUCapacity reads the capacity of one group. The capacity is the minimum of three
// limits: the CPU quotas of the group's cgroup and of every ancestor, the group's cpuset,
// and the number of CPUs online.
type CPUCapacity struct {
	r       *Reader
	quotas  []*level[float64] // the quota of the cgroup itself comes first
	cpusets []*level[int]

	// cpuset is the cpuset limit at the last read. The fields after
	// cpuset are the state at that read.
	cpuset   Capacity // Cores is 0 without a limit
	cpusetAt time.Time
	written  uint32
	online   int
}

// OpenCPUCapacity opens the CPU limits of all cgroups on the paths of a group or process.
// Readers may share these cgroups, because an ancestor's quota limits every cgroup below
// the ancestor.
func (r *Reader) OpenCPUCapacity(p Paths) (*CPUCapacity, error) {
	c := &CPUCapacity{r: r}
	if h, ok := r.tree.owner(CPU); ok {
		c.quotas = r.acquireQuotas(h, p[h])
	}
	if h, ok := r.tree.owner(CPUSet); ok {
		// Only programs write to the second file. Its writes change the first file.
		c.cpusets = acquireAll(r, r.cpusets, h, p[h], h.file("cpuset.cpus.effective", "cpuset.effective_cpus"), "cpuset.cpus")
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
		all = append(all, acquire(r, m, h, at, names...))
	}
	return all
}

// acquire returns the level of a cgroup. names are the files that contain its limit.
func acquire[T any](r *Reader, m map[string]*level[T], h Hierarchy, at string, names ...string) *level[T] {
	dir := r.tree.dir(h, at)
	key := filepath.Join(dir, names[0])
	l := m[key]
	if l == nil {
		l = &level[T]{path: at}
		for _, name := range names {
			l.files = append(l.files, r.files.File(filepath.Join(dir, name)))
		}
		m[key] = l
	}
	l.refs++
	return l
}

func release[T any](m map[string]*level[T], levels ...*level[T]) {
	for _, l := range levels {
		if l.refs--; l.refs == 0 {
			l.close()
			delete(m, l.files[0].Path())
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
	cpuset, err := c.readCPUSet(now, n)
	if err != nil {
		return Capacity{}, err
	}
	if cpuset.Cores > 0 && cpuset.Cores < least.Cores {
		least = cpuset
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
	c.cpusetAt = time.Time{}
	for _, l := range c.quotas {
		l.renew()
	}
	for _, l := range c.cpusets {
		l.renew()
	}
}

// readCPUSet returns the CPUs of the nearest cgroup that lists any CPU. These CPUs are a
// subset of the CPUs of the cgroup's ancestors. The result rarely changes unless a
// cpuset on the path is written or a CPU goes online or offline.
func (c *CPUCapacity) readCPUSet(now time.Time, online int) (Capacity, error) {
	c.r.takeChanges(now)
	written, watched := uint32(0), true
	for _, l := range c.cpusets {
		if l.watch == nil && !l.missing {
			l.watch = c.r.changes.Watch(l.files[1])
		}
		watched = watched && (l.watch != nil || l.missing)
		written += l.watch.Changes()
	}
	age := now.Sub(c.cpusetAt)
	if watched && age >= 0 && age < unseenFor && written == c.written && online == c.online {
		return c.cpuset, nil
	}
	c.cpuset = Capacity{}
	for _, l := range c.cpusets {
		n, err := c.r.cpus(l, now)
		if err != nil {
			c.cpusetAt = time.Time{}
			return Capacity{}, err
		}
		if n > 0 {
			c.cpuset = Capacity{Cores: float64(n), By: ByCPUSet, Path: l.path}
			break
		}
	}
	c.cpusetAt, c.written, c.online = now, written, online
	return c.cpuset, nil
}

// Close closes the files.
func (c *CPUCapacity) Close() {
	release(c.r.quotas, c.quotas...)
	release(c.r.cpusets, c.cpusets...)
	c.quotas, c.cpusets = nil, nil
}

// CPUsOnline returns the number of CPUs online.
func (r *Reader) CPUsOnline(now time.Time) (int, error) {
	l := &r.online
	if !l.fresh(now) {
		l.at = now
		l.value, l.err = r.readCPUs(&l.files[0])
		if l.err == nil && l.value == 0 {
			l.err = fmt.Errorf("read %s: it names no CPU", l.files[0].Path())
		}
	}
	return l.value, l.err
}

// cpus returns the number of CPUs that a cgroup may use, or 0 if the cgroup sets no limit.
func (r *Reader) cpus(l *level[int], now time.Time) (int, error) {
	if !l.fresh(now) {
		l.at = now
		l.value, l.err = r.readCPUs(&l.files[0])
		l.allowMissing()
	}
	return l.value, l.err
}

func (r *Reader) readCPUs(f *openfile.File) (int, error) {
	n, _, err := f.Read(r.buf)
	if err != nil {
		return 0, err
	}
	count, ok := countCPUs(r.buf[:n])
	if !ok {
		return 0, fmt.Errorf("read %s: malformed list of CPUs %.40q", f.Path(), r.buf[:n])
	}
	return count, nil
}

// readQuota returns the number of cores that a cgroup's quota allows, or 0 without a quota.
func (r *Reader) readQuota(l *level[float64]) (cores float64, replaced bool, err error) {
	n, replaced, err := l.files[0].Read(r.buf)
	if err != nil {
		return 0, replaced, err
	}
	b := trimSpace(r.buf[:n])
	if bytes.HasPrefix(b, []byte("max")) || bytes.HasPrefix(b, []byte("-")) {
		return 0, replaced, nil
	}
	text, rest, _ := bytes.Cut(b, []byte(" "))
	quota, err := parseFigure(text)
	if err != nil {
		return 0, replaced, fmt.Errorf("read %s: malformed quota %.40q", l.files[0].Path(), b)
	}
	if len(l.files) > 1 { // v1 has the period in a separate file
		n, other, err := l.files[1].Read(r.buf)
		if replaced = replaced || other; err != nil {
			return 0, replaced, err
		}
		rest = r.buf[:n]
	}
	period, err := parseFigure(rest)
	if err != nil || period == 0 {
		return 0, replaced, fmt.Errorf("read the period of %s: malformed %.40q", l.files[0].Path(), rest)
	}
	return float64(quota) / float64(period), replaced, nil
}
