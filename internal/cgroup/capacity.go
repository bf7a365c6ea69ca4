// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup/keptfile"
)

// A Bound says what limits a unit's capacity.
type Bound string

// The bounds.
const (
	ByQuota  Bound = "quota"
	ByCPUSet Bound = "cpuset"
	ByOnline Bound = "cpus online"
)

// Capacity is how much CPU a unit may use.
type Capacity struct {
	Cores float64 // fractions kept
	By    Bound
	Path  string // of the cgroup that sets the bound, the unit's or an ancestor's; empty for the CPUs online
}

// A CPUCapacity reads the capacity of one unit: the least of the CPU quota on its
// cgroup and on every ancestor, its cpuset, and the CPUs online.
type CPUCapacity struct {
	r       *Reader
	quotas  []*level[float64] // the cgroup's own first
	cpusets []*level[int]
}

// OpenCPUCapacity opens the limits of a unit's or a process's paths. An
// ancestor's quota binds whoever is below it, so it does not matter whether the
// paths are shared.
func (r *Reader) OpenCPUCapacity(p Paths) (*CPUCapacity, error) {
	c := &CPUCapacity{r: r}
	if h, ok := r.tree.owner(CPU); ok {
		for path := p[h]; path != "" && path != "/"; path = parent(path) {
			dir := r.tree.dir(h, path)
			c.quotas = append(c.quotas, r.acquireQuota(dir, path, h))
		}
	}
	if h, ok := r.tree.owner(CPUSet); ok {
		name := "cpuset.effective_cpus"
		if h == V2Tree {
			name = "cpuset.cpus.effective"
		}
		for path := p[h]; path != "" && path != "/"; path = parent(path) {
			dir := r.tree.dir(h, path)
			c.cpusets = append(c.cpusets, acquire(r.cpusets, dir, path, func() [2]keptfile.File {
				return [2]keptfile.File{r.files.File(filepath.Join(dir, name))}
			}))
		}
	}
	if _, err := r.cpusOnline(time.Time{}); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (r *Reader) quotaFiles(dir string, h Hierarchy) [2]keptfile.File {
	if h == V2Tree {
		return [2]keptfile.File{r.files.File(filepath.Join(dir, "cpu.max"))}
	}
	return [2]keptfile.File{
		r.files.File(filepath.Join(dir, "cpu.cfs_quota_us")),
		r.files.File(filepath.Join(dir, "cpu.cfs_period_us")),
	}
}

func (r *Reader) acquireQuota(dir, path string, h Hierarchy) *level[float64] {
	return acquire(r.quotas, dir, path, func() [2]keptfile.File { return r.quotaFiles(dir, h) })
}

func acquire[T any](m map[string]*level[T], dir, path string, files func() [2]keptfile.File) *level[T] {
	l := m[dir]
	if l == nil {
		l = &level[T]{path: path, key: dir, files: files()}
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

func parent(path string) string {
	i := strings.LastIndexByte(path, '/')
	if i <= 0 {
		return "/"
	}
	return path[:i]
}

// Read returns the capacity now. A limit that several units share is read once
// for all of them.
func (c *CPUCapacity) Read(now time.Time) (Capacity, error) {
	n, err := c.r.cpusOnline(now)
	if err != nil {
		return Capacity{}, err
	}
	least := Capacity{Cores: float64(n), By: ByOnline}
	for _, l := range c.cpusets {
		n, err := c.r.cpuset(l, now)
		if err != nil {
			return Capacity{}, err
		}
		if n > 0 { // what is effective here is within what is effective above
			if float64(n) < least.Cores {
				least = Capacity{Cores: float64(n), By: ByCPUSet, Path: l.path}
			}
			break
		}
	}
	for _, l := range c.quotas {
		cores, err := c.r.quota(l, now)
		if err != nil {
			return Capacity{}, err
		}
		if cores > 0 && cores < least.Cores {
			least = Capacity{Cores: cores, By: ByQuota, Path: l.path}
		}
	}
	return least, nil
}

// Close gives up the files.
func (c *CPUCapacity) Close() {
	release(c.r.quotas, c.quotas)
	release(c.r.cpusets, c.cpusets)
	c.quotas, c.cpusets = nil, nil
}

// CPUsOnline is how many CPUs the host has online.
func (r *Reader) CPUsOnline(now time.Time) (int, error) { return r.cpusOnline(now) }

func (r *Reader) cpusOnline(now time.Time) (int, error) {
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

// cpuset returns how many CPUs a cgroup may use, 0 where it does not say.
func (r *Reader) cpuset(l *level[int], now time.Time) (int, error) {
	if !l.fresh(now) {
		l.at = now
		if l.value, l.err = r.readCPUs(&l.files[0]); errors.Is(l.err, fs.ErrNotExist) {
			l.err = nil // the controller is not enabled at this level
		}
	}
	return l.value, l.err
}

func (r *Reader) readCPUs(f *keptfile.File) (int, error) {
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

// quota returns the cores that a cgroup's quota allows, 0 without a quota.
func (r *Reader) quota(l *level[float64], now time.Time) (float64, error) {
	if !l.fresh(now) {
		l.at = now
		l.value, l.err = r.readQuota(l)
		if l.missing = errors.Is(l.err, fs.ErrNotExist); l.missing {
			l.err = nil // the controller is not enabled at this level
		}
	}
	return l.value, l.err
}

func (r *Reader) readQuota(l *level[float64]) (float64, error) {
	n, _, err := l.files[0].Read(r.buf)
	if err != nil {
		return 0, err
	}
	b := trimSpace(r.buf[:n])
	if bytes.HasPrefix(b, []byte("max")) || bytes.HasPrefix(b, []byte("-")) {
		return 0, nil
	}
	quota, rest, ok := parseUint(b)
	if !ok {
		return 0, fmt.Errorf("read %s: malformed quota %.40q", l.files[0].Path(), b)
	}
	if l.files[1].Path() != "" { // v1 has the period in a file of its own
		if n, _, err = l.files[1].Read(r.buf); err != nil {
			return 0, err
		}
		rest = r.buf[:n]
	} else if len(rest) > 0 && rest[0] == ' ' {
		rest = rest[1:]
	}
	period, _, ok := parseUint(rest)
	if !ok || period == 0 {
		return 0, fmt.Errorf("read the period of %s: malformed %.40q", l.files[0].Path(), rest)
	}
	return float64(quota) / float64(period), nil
}
