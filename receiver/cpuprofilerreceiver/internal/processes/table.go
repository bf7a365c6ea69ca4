// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"cmp"
	"fmt"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/deadline"
)

// Config is the configuration of a Table.
type Config struct {
	// Root is the directory in which the host's root is mounted. "" means "/".
	Root string
	// Tree has the host's cgroups. It is nil if they cannot be read.
	Tree *cgroup.Tree
	// Track is called at once for each new mapping of a file, so that the file can be
	// opened while its process is alive. It must not block. It may be nil.
	Track func(*samples.Mapping)
	// Runner runs reads of the memory of processes. It may be nil.
	Runner *deadline.Runner
	// Budget bounds the CPU time of reading mappings. If no time is left, the mappings of a
	// process are read in a later batch. Meter sums the CPU time of reading mappings and
	// environments. Both may be nil.
	Budget *cputime.Budget
	Meter  *cputime.Meter
	// Wanted matches the processes to sample. nil means all processes.
	Wanted *Matcher
	// HostName and HostID are added to every resource unless empty.
	HostName, HostID string
	// Hot returns a function that reports whether a process belongs to a hot unit now. It
	// is called when memory is short. It may be nil.
	Hot func() func(*Process) bool
	// Interpreted returns the location of an address in the upper half of the address
	// space, which stands for an interpreted frame of a process. It returns nil for unknown
	// addresses. It may be nil.
	Interpreted func(pid int, address uint64) *samples.Location
	// Limits bounds memory. Zero fields have defaults.
	Limits Limits
	// Now is the clock for programs that are being started. nil means time.Now.
	Now func() time.Time
}

// Limits are the bounds of a Table's memory.
type Limits struct {
	// Processes is the maximum number of known processes, 16384 by default. At the bound
	// the least recently used process is forgotten.
	Processes int
	// Mappings is the maximum number of mappings of a process, 8192 by default. At the
	// bound new mappings are left out.
	Mappings int
	// Bytes is the maximum memory of processes, their mappings and names, 32 MiB by
	// default. The mappings of one process may have a quarter of it. At the bound processes
	// are forgotten. Idle processes come first, the longest idle before the others, then
	// the largest ones, and processes of hot units last. A forgotten process is read again
	// at its next sample.
	Bytes int
	// StackBytes is the maximum memory of all interned stacks, 32 MiB by default. One
	// process may have half of it. At the bound the stacks of the process, or of others in
	// the same order, are forgotten. They are interned again when they are seen.
	StackBytes int
	// ThreadNames is the maximum number of known names, 65536 by default. At the bound all
	// are forgotten, and read again.
	ThreadNames int
	// Starts is the maximum number of started programs that are read per batch, 5000 by
	// default. Other programs are read when they are sampled. Until then they only have
	// data from records and from their parent.
	Starts int
}

func (l *Limits) setDefaults() {
	l.Processes = cmp.Or(l.Processes, 16384)
	l.Mappings = cmp.Or(l.Mappings, 8192)
	l.Bytes = cmp.Or(l.Bytes, 32<<20)
	l.StackBytes = cmp.Or(l.StackBytes, 32<<20)
	l.ThreadNames = cmp.Or(l.ThreadNames, 65536)
	l.Starts = cmp.Or(l.Starts, 5000)
}

// Stats holds the sizes of a Table, and its counters since it was made.
type Stats struct {
	// Processes, Stacks, StackBytes and ThreadNames are the current sizes. Bytes is the
	// memory of processes, mappings and names.
	Processes, Stacks, StackBytes, ThreadNames, Bytes int

	// Evicted counts processes forgotten at Limits.Processes and Limits.Bytes.
	// MappingsLeftOut counts mappings left out at Limits.Mappings. StackResets counts how
	// often stacks were forgotten at Limits.StackBytes. ThreadNameResets counts how often
	// names reached Limits.ThreadNames. StartsLeftOut counts programs that were not read at
	// Limits.Starts, or that took the kernel more than 10 s to start.
	Evicted, MappingsLeftOut, StackResets, ThreadNameResets, StartsLeftOut uint64
}

// Table holds the processes of a host. It belongs to one goroutine.
type Table struct {
	cfg         Config
	fs          *procReader
	boot        time.Time // zero if unknown
	memberships *membershipCache
	stats       Stats

	processes *simplelru.LRU[int, *Process]
	last      *Process // the result of the last Lookup
	programs  uint64   // the number of programs so far
	batch     uint64   // the number of the batch, from 1
	losses    uint64   // the number of times that records were lost
	doubtful  int      // processes that may have ended without a record, see verify

	started     []start // programs to be read about
	startsLeft  int
	ended, was  []int // processes that ended in this batch, and in the one before
	threadsGone [2][]thread

	names           map[string]string // paths and names of threads, interned
	nameBytes       int
	kernel          *samples.Mapping
	kernelLocations map[locationKey]*samples.Location
}

// start is a program that was started.
type start struct {
	p       *Process
	program uint64
	// since is the time at which the program was listed. next is the time of the next read.
	since, next time.Time
}

// The kernel reports the start of a program before it copies the environment. In between it
// reads the program from disk, or runs other programs if there are many. So Settle reads
// the environment repeatedly, at first each millisecond, then after an eighth of the
// elapsed time, for at most startLimit. Until startSoon, Settle asks to be called again
// soon.
const (
	startLimit = 10 * time.Second
	startSoon  = 128 * time.Millisecond
)

// The maximum number of processes checked per batch because their end may not have been
// reported. Each check takes about 10 µs. maxVerified applies after a loss. alwaysVerified
// applies always, because processes that are not sampled any more have no records.
const (
	maxVerified    = 1024
	alwaysVerified = 128
)

// maxNames bounds the interned strings. They may take an eighth of Limits.Bytes, and the
// strings of cgroups another eighth. At the bound all are forgotten.
const maxNames = 8192

// NewTable returns an empty table.
func NewTable(cfg Config) *Table {
	cfg.Limits.setDefaults()
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	t := &Table{
		cfg:         cfg,
		fs:          newProcReader(cfg),
		boot:        procfs.BootTime(),
		memberships: newMembershipCache(cfg.Tree, cfg.Limits.Bytes/8),
		batch:       1,
		startsLeft:  cfg.Limits.Starts,
		names:       make(map[string]string),
		kernel: &samples.Mapping{
			Start: 1 << 63, Limit: 1<<64 - 1, // the upper half of the address space
			Path: "[kernel.kallsyms]",
		},
		kernelLocations: make(map[locationKey]*samples.Location),
	}
	lru, err := simplelru.NewLRU(cfg.Limits.Processes, t.forget)
	if err != nil {
		panic(fmt.Sprintf("a table of %d processes: %v", cfg.Limits.Processes, err)) // setDefaults makes it positive
	}
	t.processes = lru
	return t
}

// Stats returns the counters.
func (t *Table) Stats() Stats {
	s := t.stats
	s.Processes, s.Bytes = t.processes.Len(), t.held()
	return s
}

// Lookup returns the process of a sample, and reads its unknown data. It returns nil only
// for pids below 1. cgroupID is the cgroup in the sample, or 0 if the kernel does not
// record it. If it has changed, the process has moved.
func (t *Table) Lookup(pid int, cgroupID uint64) *Process {
	p := t.last
	if p == nil || p.PID != pid {
		if pid <= 0 {
			return nil
		}
		var known bool
		if p, known = t.processes.Get(pid); !known {
			p = t.add(&Process{PID: pid})
		}
		t.last = p
	}
	if p.batch != t.batch || p.losses != t.losses || p.cgroupID != cgroupID || p.Resource == nil {
		p = t.refresh(p, cgroupID)
		t.last = p
	}
	return p
}

// refresh updates a process at its first sample in each batch, and after a record has
// changed the process.
func (t *Table) refresh(p *Process, cgroupID uint64) *Process {
	if p.batch != t.batch || p.losses != t.losses || p.cgroupID != cgroupID || !p.read || p.space == nil {
		p = t.read(p)
		p.batch, p.losses, p.cgroupID = t.batch, t.losses, cgroupID
	}
	t.describe(p)
	t.makeRoom(p)
	return p
}

// read reads the data of a process from /proc. It returns another process if the pid has
// been reused.
func (t *Table) read(p *Process) *Process {
	s, err := t.fs.stat(p.PID)
	alive := err == nil
	if alive && p.ticks != 0 && p.ticks != s.Start {
		// No record reported its end, and another process has the pid.
		p = t.add(&Process{PID: p.PID})
	}
	if alive && s.Threads > 1 {
		p.ended = false // only the main thread has ended
	}
	again := alive && (p.losses != t.losses || p.silent)
	if !p.read || again {
		t.learn(p, s, err)
	} else if alive {
		p.Name = t.intern(s.name)
		t.readMembership(p)
		if p.starting {
			t.readEnviron(p, s.Starting) // it was first seen while its program started
		}
	}
	if p.space == nil || again {
		t.readMaps(p, alive)
	}
	return p
}

// add adds a process and removes one with the same pid.
func (t *Table) add(p *Process) *Process {
	t.processes.Remove(p.PID)
	t.programs++
	p.table, p.program, p.losses = t, t.programs, t.losses
	if p.facts == nil {
		p.facts = &facts{}
	}
	t.weigh(p)
	if t.processes.Add(p.PID, p) {
		t.stats.Evicted++
	}
	return p
}

// forget is called for each process that leaves the table.
func (t *Table) forget(_ int, p *Process) {
	if t.last == p {
		t.last = nil
	}
	t.settle(p)
	p.leaveSpace()
	t.stats.Bytes -= p.bytes
	p.bytes = 0
	t.stats.ThreadNames -= len(p.threads)
	p.threads = nil
}

// Fork records a new process, or a new thread if pid equals ppid. A new process inherits
// all data from its parent, in case it ends before it can be read.
func (t *Table) Fork(pid, ppid, tid, ptid int) {
	if pid <= 0 || ppid <= 0 {
		return
	}
	t.makeRoom(nil)
	if pid == ppid {
		if p, ok := t.processes.Peek(pid); ok {
			p.forkThread(tid, ptid)
		}
		return
	}
	parent, ok := t.processes.Get(ppid)
	if !ok {
		parent = t.add(&Process{PID: ppid})
	}
	if !parent.read && !parent.execed {
		s, err := t.fs.stat(ppid)
		t.learn(parent, s, err)
	} else if parent.membershipBatch != t.batch {
		t.readMembership(parent) // it may have moved, and its child with it
	}
	name := parent.Name
	if ptid != ppid {
		name = parent.threads[ptid]
	}
	child := &Process{PID: pid, PPID: ppid, Name: name, facts: parent.facts, cgroupID: parent.cgroupID}
	t.add(child)
	child.parent = parent.program
	child.shareSpace(parent)
}

// Exec records that a process now runs another program. The next records have its mappings.
// Settle reads the rest, or Lookup when the process is sampled.
func (t *Table) Exec(pid int, comm []byte) {
	if pid <= 0 {
		return
	}
	t.makeRoom(nil)
	p, ok := t.processes.Get(pid)
	if !ok {
		p = t.add(&Process{PID: pid})
	}
	t.settle(p)
	t.programs++
	p.program, p.execed, p.read, p.ended, p.rootRead = t.programs, true, false, false, false
	p.Name, p.Resource = t.intern(text(comm, maxComm)), nil
	f := *p.facts
	f.path, f.kernel = "", false
	p.facts = &f
	t.stats.ThreadNames -= len(p.threads)
	p.threads = nil
	p.leaveSpace()
	p.enter(newSpace())
	t.list(p)
}

// Comm records a thread's new name.
func (t *Table) Comm(pid, tid int, comm []byte) {
	p, ok := t.processes.Peek(pid)
	if !ok {
		return
	}
	p.setThreadName(tid, t.internBytes(comm, maxComm))
}

// Mmap records a new executable mapping.
func (t *Table) Mmap(pid int, m *perfevent.Mmap) {
	t.makeRoom(nil)
	p, ok := t.processes.Peek(pid)
	if !ok || p.space == nil {
		return // its maps are read when it is sampled
	}
	const protExec = 4
	r := procfs.Mapping{
		Start: m.Address, Limit: m.Address + m.Length, Offset: m.Offset,
		Major: m.DeviceMajor, Minor: m.DeviceMinor, Inode: m.Inode, Path: m.Filename,
	}
	if r.Limit <= r.Start {
		return
	}
	if m.Prot != 0 && m.Prot&protExec == 0 {
		r.Path = nil
	}
	if p.execed && !p.read && p.facts.path == "" && len(r.Path) > 0 && r.Path[0] == '/' {
		// The kernel maps the program first.
		f := *p.facts
		f.path = t.internBytes(r.Path, maxValue)
		p.facts = &f
		p.Resource = nil
	}
	t.mapped(p, r, m.BuildID)
}

// Exit records the end of a thread. A process stays known until the next batch ends,
// for samples that are read late.
func (t *Table) Exit(pid, tid int) {
	p, ok := t.processes.Peek(pid)
	if !ok {
		return
	}
	if pid == tid {
		if !p.ended && len(t.ended) < t.cfg.Limits.Processes {
			t.ended = append(t.ended, pid)
		}
		p.ended = true
		return
	}
	if _, named := p.threads[tid]; named && len(t.threadsGone[0]) < t.cfg.Limits.ThreadNames {
		t.threadsGone[0] = append(t.threadsGone[0], thread{pid, tid})
	}
}

// AfterLoss is called after records were lost or not written. Each process is read again at
// its next sample.
func (t *Table) AfterLoss() {
	t.losses++
	for _, p := range t.processes.Values() {
		t.stats.ThreadNames -= len(p.threads)
		p.threads = nil
	}
	t.doubtful = t.processes.Len()
}

// NextBatch begins a new batch. It forgets ended processes, and makes sampled processes be
// read again.
func (t *Table) NextBatch() {
	t.batch++
	t.startsLeft = t.cfg.Limits.Starts
	for _, pid := range t.was {
		if p, ok := t.processes.Peek(pid); ok && p.ended {
			t.processes.Remove(pid)
		}
	}
	t.was, t.ended = t.ended, t.was[:0]
	t.verify()
	for _, gone := range t.threadsGone[1] {
		if p, ok := t.processes.Peek(gone.pid); ok {
			p.dropThreadName(gone.tid)
		}
	}
	t.threadsGone[0], t.threadsGone[1] = t.threadsGone[1][:0], t.threadsGone[0]
	t.fs.trim()
}

// verify checks whether processes still exist, because their end may not have been
// reported. It begins with the least recently used. Without it, ended processes would stay
// until the table is full.
func (t *Table) verify() {
	n := min(max(t.doubtful, alwaysVerified), maxVerified, t.processes.Len())
	t.doubtful = max(0, t.doubtful-n)
	for range n {
		pid, p, ok := t.processes.GetOldest()
		if !ok {
			return
		}
		s, err := t.fs.stat(pid)
		switch {
		case err == nil && (p.ticks == 0 || p.ticks == s.Start), isDenied(err):
		case !p.ended:
			p.ended = true
			t.ended = append(t.ended, pid)
		}
		t.processes.Get(pid) // the next one is the oldest then
	}
}

// Settle reads the data of programs that just started. Call it after passing all available
// records to the table. If it returns true, the kernel is still starting programs. Call it
// again after 1 to 2 ms then, even without records.
func (t *Table) Settle() (again bool) {
	if len(t.started) == 0 {
		return false
	}
	now := t.cfg.Now()
	left := t.started[:0]
	for _, s := range t.started {
		if s.p.program != s.program || s.p.space == nil {
			continue // runs another program, or is forgotten
		}
		if now.Before(s.next) || t.starts(&s, now) {
			left = append(left, s)
			again = again || now.Sub(s.since) < startSoon
			continue
		}
		s.p.listed = 0
		t.settle(s.p)
	}
	clear(t.started[len(left):])
	t.started = left
	return again
}

// Starting reports whether the kernel is still starting programs of any age, so that Settle
// has to be called again.
func (t *Table) Starting() bool { return len(t.started) > 0 }

// starts reads the data of a program that just started, and reports whether the kernel is
// still starting it.
func (t *Table) starts(s *start, now time.Time) bool {
	p, age := s.p, now.Sub(s.since)
	if p.ended || p.read && !p.starting {
		return false
	}
	st, err := t.fs.stat(p.PID)
	switch {
	case !p.read:
		t.learn(p, st, err)
	case err != nil:
		return false // it has ended
	default:
		if path, err := t.fs.executable(p.PID); err == nil && path != p.facts.path {
			return false // runs another program; its record has not been read yet
		}
		t.readEnviron(p, st.Starting)
	}
	if p.starting && age >= startLimit {
		t.stats.StartsLeftOut++
		return false
	}
	s.next = now.Add(max(age/8, time.Millisecond))
	return p.starting
}

// GiveUp settles all programs that the kernel is still starting, with the data known so
// far. Call it if Settle will not be called for a while.
func (t *Table) GiveUp() {
	for _, s := range t.started {
		if s.p.program == s.program {
			s.p.listed = 0
			t.settle(s.p)
		}
	}
	clear(t.started)
	t.started = t.started[:0]
}

// intern returns the shared copy of a string.
func (t *Table) intern(s string) string {
	if known, ok := t.names[s]; ok {
		return known
	}
	n := len(s) + stringBytes
	if len(t.names) >= maxNames || t.nameBytes+n > t.cfg.Limits.Bytes/8 {
		clear(t.names)
		t.nameBytes = 0
	}
	t.names[s] = s
	t.nameBytes += n
	return s
}

// internBytes is intern for untrusted bytes. It does not allocate memory for known strings.
func (t *Table) internBytes(b []byte, limit int) string {
	if known, ok := t.names[string(b)]; ok && len(b) <= limit {
		return known
	}
	return t.intern(text(b, limit))
}
