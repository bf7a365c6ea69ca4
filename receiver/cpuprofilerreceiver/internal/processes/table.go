// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package processes keeps data about the processes of samples. This data is a resource
// that describes the program of the process, its mappings, and its stacks. Stacks are
// interned, so that a known stack costs no memory.
//
// The data has two sources. The kernel's records of forks, execs and mappings arrive with
// the samples. They cover every process that starts after sampling has begun, even if it
// runs for only a few milliseconds. /proc covers the processes that ran before. It also
// contains the environment and cgroup, which records do not contain. Data that neither
// source contains stays unset and is counted. A process can also publish the attributes of
// its service in its memory.
//
// The goroutine that reads the rings uses a [Table]. Another goroutine uses a [Finder] to
// search for the processes of targets.
package processes

import (
	"cmp"
	"errors"
	"os"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
)

// Config is the configuration of a Table.
type Config struct {
	// Access limits the CPU time of reading mappings. If its budget is used up, the
	// mappings of a process are read in a later batch. Its meter also measures the CPU
	// time of reading environments.
	mappedfile.Access
	// Tree is the host's cgroup tree. It is nil if cgroups cannot be read.
	Tree *cgroup.Tree
	// Track is called at once for each new mapping of a file, so that the file can be
	// opened while its process is alive. Track must not block, and may be nil.
	Track func(*samples.Mapping)
	// Wanted matches the processes to sample. nil means all processes.
	Wanted *Matcher
	// HostName and HostID are added to every resource if they are not empty.
	HostName, HostID string
	// Hot is called when memory is short. It returns a function that reports whether a
	// process belongs to a hot unit. Hot may be nil.
	Hot func() func(*Process) bool
	// Interpreted returns the location of an interpreted frame of a process, or nil if the
	// frame is unknown. Addresses of interpreted frames are in the upper half of the
	// address space. Interpreted may be nil.
	Interpreted func(pid int, address uint64) *samples.Location
	// Labels contains the keys of the attributes of threads that become attributes of
	// samples.
	Labels []string
	// Limits contains the limits of the Table's memory. If a field is zero, its default
	// applies.
	Limits Limits
	// Now returns the current time. The Table uses it for programs that are starting
	// and for process contexts. nil means time.Now.
	Now func() time.Time
}

// Limits contains the limits of a Table's memory.
type Limits struct {
	// Processes is the maximum number of known processes, 16384 by default.
	// When this number is reached, the least recently used process is
	// forgotten for each new process.
	Processes int
	// Mappings is the maximum number of mappings of a process, 8192 by default. When this
	// number is reached, new mappings are left out.
	Mappings int
	// Bytes is the maximum memory of processes, their mappings and names, 32 MiB by
	// default. The mappings of one process may use a quarter of this memory. If the
	// maximum is exceeded, processes are forgotten in the order of Table.ranking. A
	// forgotten process is read again at its next sample.
	Bytes int
	// StackBytes is the maximum memory of all interned stacks, 32 MiB by default.
	// One process may use half of this memory. A process that would exceed its half
	// loses its stacks. If all processes together would exceed the maximum,
	// processes lose their stacks in the order of Table.ranking. A lost stack is
	// interned again at its next sample.
	StackBytes int
	// ThreadNames is the maximum number of known thread names, 65536 by default. When this
	// number is reached, all names are forgotten. Forgotten names are read again when they
	// are needed.
	ThreadNames int
	// Starts is the maximum number of programs per batch that are read when they start,
	// 5000 by default. Other programs are read at their first sample. Until then, the
	// data of these programs comes only from records and from the parent process.
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

// Stats holds the current sizes of a Table, and its counters since its creation.
type Stats struct {
	// Bytes is the memory of processes, mappings and names.
	Processes, Stacks, StackBytes, ThreadNames, Bytes int

	// Evicted counts processes that were forgotten because of Limits.Processes or
	// Limits.Bytes. MappingsLeftOut counts mappings that were left out because of
	// Limits.Mappings or Limits.Bytes. StackResets counts how often stacks were
	// forgotten because of Limits.StackBytes. ThreadNameResets counts how often
	// names were forgotten because of Limits.ThreadNames. StartsLeftOut counts
	// programs that were not read because of Limits.Starts or because the kernel
	// took more than 10 s to start them.
	Evicted, MappingsLeftOut, StackResets, ThreadNameResets, StartsLeftOut uint64
}

// Table holds the processes of a host. It is not safe for concurrent use.
type Table struct {
	cfg         Config
	fs          *procReader
	boot        time.Time // zero if unknown
	memberships *membershipCache
	stats       Stats

	processes *simplelru.LRU[int, *Process]
	last      *Process // the result of the last Lookup
	programs  uint64   // the number of the newest program
	batch     uint64   // the number of the current batch, starting at 1
	losses    uint64   // the number of times that records were lost
	doubtful  int      // the number of processes that verify still has to check after a loss

	started     []start // programs whose data Settle reads
	startsLeft  int
	ended, was  []int // processes that ended in this batch and in the previous batch
	threadsGone [2][]thread

	names           map[string]string // paths and names of threads, interned
	nameBytes       int
	kernel          *samples.Mapping
	kernelLocations map[locationKey]*samples.Location
}

// start is a program whose data Settle has to read.
type start struct {
	p       *Process
	program uint64
	// since is the time at which the program was listed. next is the time of the next read.
	since, next time.Time
}

// The kernel reports the start of a program before it copies the environment. Before the
// kernel copies the environment, it may read the program from disk or run other programs.
// Settle therefore reads the environment repeatedly, for at most startLimit. The interval
// between two reads begins at 1 ms and grows to an eighth of the elapsed time. If a
// program was reported less than startSoon ago, Settle returns true, so that it is called
// again soon.
const (
	startLimit = 10 * time.Second
	startSoon  = 128 * time.Millisecond
)

// maxVerified is the maximum number of processes that verify checks in one batch after
// records were lost. If no records were lost, verify checks alwaysVerified processes per
// batch. These checks are needed because the end of a process is not recorded if the
// process is no longer sampled. A check takes about 10 µs.
const (
	maxVerified    = 1024
	alwaysVerified = 128
)

// maxNames is the maximum number of interned strings. The maximum memory of these strings
// is an eighth of Limits.Bytes. If a new string would exceed one of these limits, all
// strings are forgotten.
const maxNames = 8192

// NewTable returns an empty table.
func NewTable(cfg Config) *Table {
	cfg.Limits.setDefaults()
	cfg.Wanted = cmp.Or(cfg.Wanted, &Matcher{})
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
	t.processes, _ = simplelru.NewLRU(cfg.Limits.Processes, t.forget) // fails only for a size below 1
	return t
}

// Stats returns the counters.
func (t *Table) Stats() Stats {
	s := t.stats
	s.Processes, s.Bytes = t.processes.Len(), t.held()
	return s
}

// Lookup returns the process of a sample, and reads the missing data of the process. It
// returns nil only for pids below 1. cgroupID is the cgroup in the sample, or 0 if the
// kernel does not record the cgroup. A changed cgroupID means that the process has moved.
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

// Known is like Lookup, but for a record without a cgroup. A known process keeps its
// cgroup.
func (t *Table) Known(pid int) *Process {
	if p := t.last; p != nil && p.PID == pid && p.Resource != nil {
		return p
	}
	cgroup := uint64(0)
	if p, ok := t.processes.Peek(pid); ok {
		cgroup = p.cgroupID
	}
	return t.Lookup(pid, cgroup)
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
		// No record reported the end of the process, and another process has the pid.
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
			t.readEnviron(p, s.Starting) // the last read was before the kernel copied the environment
		}
	}
	if p.space == nil || again {
		t.readMaps(p, alive)
	}
	if alive && !p.silent && !p.facts.kernel {
		t.readContext(p)
	}
	return p
}

// add adds a process and removes any process with the same pid.
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
	p.dropThreadNames()
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
		t.readMembership(parent) // the parent may have moved before the fork
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

// Exec records that a process now runs another program. The program's mappings
// arrive with the next records. Settle reads the other data, unless Lookup reads it
// first at a sample.
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
	p.Name = t.intern(text(comm, maxComm))
	p.context = processContext{}
	p.change(func(f *facts) { f.path, f.kernel = "", false })
	p.dropThreadNames()
	p.leaveSpace()
	p.enter(newSpace())
	t.list(p)
}

// Comm records a thread's new name.
func (t *Table) Comm(pid, tid int, comm []byte) {
	if p, ok := t.processes.Peek(pid); ok {
		p.setThreadName(tid, t.internBytes(comm, maxComm))
	}
}

// Mmap records a new executable mapping.
func (t *Table) Mmap(pid int, m *perfevent.Mmap) {
	t.makeRoom(nil)
	p, ok := t.processes.Peek(pid)
	if !ok || p.space == nil {
		return // the mappings are read when the process is sampled
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
		// The kernel maps the program before other files, so this is the program's path.
		p.change(func(f *facts) { f.path = t.internBytes(r.Path, maxValue) })
	}
	t.mapped(p, r, m.BuildID)
}

// Exit records the end of a thread. An ended process stays known until the end of the next
// batch, because its samples may arrive late.
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
	t.dropThreadNames()
	t.doubtful = t.processes.Len()
}

// NextBatch starts a new batch. It forgets processes that ended before the previous batch.
// In the new batch, a process is read again at its first sample.
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

// verify checks whether the least recently used processes still exist. If the record of a
// process's end was lost, the process would otherwise stay until the table is full.
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
		case err == nil && (p.ticks == 0 || p.ticks == s.Start), errors.Is(err, os.ErrPermission):
		case !p.ended:
			p.ended = true
			t.ended = append(t.ended, pid)
		}
		t.processes.Get(pid) // moves the process behind the others
	}
}

// Settle reads the data of programs that just started. Call it after passing all
// available records to the table. If Settle returns true, the kernel is still starting
// programs. In this case, call Settle again after 1 to 2 ms, even if no records arrive.
func (t *Table) Settle() (again bool) {
	if len(t.started) == 0 {
		return false
	}
	now := t.cfg.Now()
	left := t.started[:0]
	for _, s := range t.started {
		if s.p.program != s.program || s.p.space == nil {
			continue // the process runs another program or was forgotten
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

// Starting reports whether the kernel is still starting programs, even if they take
// longer than startSoon. If Starting returns true, Settle has to be called again.
func (t *Table) Starting() bool { return len(t.started) > 0 }

// starts reads the data of a program that just started. It reports whether the kernel
// is still starting the program.
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
		return false // the process has ended
	default:
		if path, err := t.fs.executable(p.PID); err == nil && path != p.facts.path {
			return false // the process runs another program, whose record has not been read yet
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

// GiveUp settles all programs that the kernel is still starting, with the known data. Call
// it if Settle will not be called for a while.
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

// internBytes is like intern, but for untrusted bytes. It does not
// allocate memory for known strings.
func (t *Table) internBytes(b []byte, limit int) string {
	if known, ok := t.names[string(b)]; ok && len(b) <= limit {
		return known
	}
	return t.intern(text(b, limit))
}
