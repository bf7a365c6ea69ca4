// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// Config is what a Table needs to know.
type Config struct {
	// Root is where the host's root is mounted; "" is "/".
	Root string
	// Tree is the host's cgroups; nil where there are none to be read.
	Tree *cgroup.Tree
	// Track is told of each new mapping of a file, at once, so that the file can
	// be opened while its process lives. It must not block. May be nil.
	Track func(*samples.Mapping)
	// Wanted says which processes are to be sampled; nil means every one.
	Wanted *Matcher
	// HostName and HostID are put on every resource where not empty.
	HostName, HostID string
}

// Process is one process. What it says may change with every record that the
// Table is given.
type Process struct {
	PID, PPID int
	// Name is the name of the process's main thread.
	Name string
	// StartTime is when the process was forked; zero where that is not known.
	StartTime time.Time
	// Resource describes the program that the process runs. It is never nil
	// after Lookup.
	Resource *samples.Resource
	// Cgroup is the cgroup that gives the process's unit its identity; empty
	// where it is not known or the process is in no cgroup of its own.
	Cgroup string
	// Wanted says that the process is to be sampled.
	Wanted bool
}

// Table is the processes. It belongs to one goroutine.
type Table struct{ cfg Config }

// NewTable returns an empty table.
func NewTable(cfg Config) *Table { return &Table{cfg: cfg} }

// Lookup returns the process that a sample was taken in, nil only for pid 0,
// and reads about it what is not known yet. cgroupID is the sample's; where it
// differs from the last one the process has moved.
func (t *Table) Lookup(pid int, cgroupID uint64) *Process { return nil }

// Fork takes a new process, or a new thread where pid equals ppid.
func (t *Table) Fork(pid, ppid, tid, ptid int) {}

// Exec takes that a process runs another program now.
func (t *Table) Exec(pid int, comm []byte) {}

// Comm takes a thread's new name.
func (t *Table) Comm(pid, tid int, comm []byte) {}

// Mmap takes a new executable mapping.
func (t *Table) Mmap(pid int, m *perfevent.Mmap) {}

// Exit takes the end of a thread. A process stays known until the batch after
// the next one begins, for samples that are read late.
func (t *Table) Exit(pid, tid int) {}

// AfterLoss takes that records were lost, or not written: what is known about
// each process is read again with its next sample.
func (t *Table) AfterLoss() {}

// NextBatch takes that a new batch begins: processes that ended are forgotten,
// and those that are sampled are looked at once more.
func (t *Table) NextBatch() {}

// Settle reads what is not known yet about programs that were just started; to
// be called when all records at hand were given to the table. Where it returns
// true some are still being started by the kernel: call it again within a
// millisecond or two, whether there are records or not.
func (t *Table) Settle() (again bool) { return false }

// ThreadName returns the name of a thread; empty where it is not known.
func (t *Table) ThreadName(pid, tid int) string { return "" }

// Stack returns the interned stack of a sample, or nil for one without frames.
func (p *Process) Stack(s *perfevent.Sample) *samples.Stack { return nil }

// MarkTruncated sets Truncated by what the symbols of a stack say: a stack is
// whole where its root is a function that threads begin with. It is to be
// called by the exporting goroutine, after the locations were resolved.
func MarkTruncated(s *samples.Stack) {}

// Stats are what a Table has done since it was made, and what it holds.
type Stats struct{}

// Stats returns the counters.
func (t *Table) Stats() Stats { return Stats{} }
