// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import "time"

// A Reader reads figures of cgroups again and again, with files kept open. It
// belongs to one goroutine.
type Reader struct{ tree *Tree }

// NewReader returns a reader that keeps at most maxOpen files open.
func (t *Tree) NewReader(maxOpen int) *Reader { return &Reader{tree: t} }

// A CPUTime reads the CPU time that one unit has used.
type CPUTime struct{}

// OpenCPUTime opens the figure of the unit's own cgroup. The error is an
// [Unavailable] where the unit has none of its own.
func (r *Reader) OpenCPUTime(u Unit) (*CPUTime, error) { return nil, NeedsLinux }

// Read returns the CPU time used. Restarted says that the cgroup is another one
// of the same path than at the last reading, so that the figure began anew.
func (c *CPUTime) Read() (used time.Duration, restarted bool, err error) { return 0, false, NeedsLinux }

// Close gives up the files.
func (c *CPUTime) Close() {}

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
	Path  string // the cgroup that sets the bound: the unit's, or an ancestor
}

// A CPUCapacity reads the capacity of one unit: the least of the CPU quota on its
// cgroup and on every ancestor, its cpuset, and the CPUs online.
type CPUCapacity struct{}

// OpenCPUCapacity opens the limits of a unit's paths.
func (r *Reader) OpenCPUCapacity(p Paths) (*CPUCapacity, error) { return nil, NeedsLinux }

// Read returns the capacity. Limits that several units share are read once for
// all readings within a short time of now.
func (c *CPUCapacity) Read(now time.Time) (Capacity, error) { return Capacity{}, NeedsLinux }

// Close gives up the files.
func (c *CPUCapacity) Close() {}

// Close closes all files.
func (r *Reader) Close() {}
