// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"bytes"
	"errors"
	"path"
	"strings"
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// Process holds the Table's data about one process. Any record may change or replace a
// Process, so call Lookup for each sample.
type Process struct {
	PID, PPID int
	// Name is the name of the process's main thread.
	Name string
	// StartTime is the time at which the process was forked. It
	// is zero if the time is unknown.
	StartTime time.Time
	// Resource describes the program that the process runs. It is never nil after Lookup.
	Resource *samples.Resource
	// Cgroup is the cgroup that identifies the process's group. It is empty if the cgroup
	// is unknown or does not identify a group.
	Cgroup string
	// Wanted reports whether the process is sampled.
	Wanted bool

	table *Table
	facts *facts // never nil; replaced instead of changed
	space *space // nil until the mappings are known
	// ticks is procfs.Process.Start. It is 0 if the start time is unknown.
	ticks uint64
	// program is the number of the program that the process runs. parent is the number of
	// the program that forked the process.
	program, parent uint64
	cgroupID        uint64
	bytes           int // see Table.weigh

	// batch and losses are the values of the Table's batch and losses at the
	// last read of the process. membershipBatch is the batch in which the
	// cgroup of the process was last read.
	batch, losses, membershipBatch uint64
	// execed is true if a record reported the start of the program. read is true if /proc
	// was read after the start of the program.
	execed, read bool
	// starting is set while the kernel has not yet copied the program's environment. The
	// process is then in Table.started. unsettled is shared by the process's Resources
	// that need the environment. settle resets starting and unsettled when the
	// environment is known, or when the environment will not be read.
	starting  bool
	unsettled *samples.Starting
	// listed is the number of the program that is in Table.started for this process. It
	// is 0 if there is no such program.
	listed uint64
	// silent is true if a read of the process's memory timed out, or if no CPU time was
	// left to read the mappings. The read is repeated in each batch.
	silent bool
	// rootRead is true if facts.root was read since the start of the program.
	rootRead bool
	// ended is true if the main thread has ended.
	ended   bool
	threads map[int]string
	context processContext
}

// Unknown reports whether the table could not determine the program of the process,
// because the process ended before it was read, and no record named its parent.
func (p *Process) Unknown() bool { return p.facts.path == "" && p.facts.raw == "" && !p.facts.kernel }

// change replaces the facts of a process instead of modifying them, because forked
// children share the old facts. The process then needs a new resource.
func (p *Process) change(set func(*facts)) {
	f := *p.facts
	set(&f)
	p.facts, p.Resource = &f, nil
}

// learn reads the data that records do not contain. A value that cannot be read stays
// unchanged. In that case, a forked child keeps the value of its parent.
func (t *Table) learn(p *Process, s stat, err error) {
	p.read = true
	if err != nil {
		return
	}
	p.PPID, p.ticks = s.PPID, s.Start
	p.Name = t.intern(s.name)
	p.StartTime = procfs.TimeOf(t.boot, s.Start)
	path, err := t.fs.executable(p.PID)
	if err != nil {
		path = p.facts.path
	}
	if path != p.facts.path || s.Kernel != p.facts.kernel {
		p.change(func(f *facts) { f.path, f.kernel = t.intern(path), s.Kernel })
	}
	t.readMembership(p)
	if s.Kernel {
		p.enterEmptySpace()
	} else {
		t.readEnviron(p, s.Starting)
	}
	t.weigh(p)
}

// readEnviron reads the environment of a process. starting is stat.Starting of an earlier
// read.
func (t *Table) readEnviron(p *Process, starting bool) {
	b, err := t.fs.readMemory(p.PID, "environ", p.facts.raw, procfs.MaxEnviron)
	p.silent = isLate(err)
	switch {
	case err != nil:
	case len(b) == 0 && starting:
		if p.listed == p.program || t.list(p) {
			p.starting = true // the parent's environment is kept until the kernel has copied the new one
			return
		}
	case len(b) == 0 && !t.fs.hasArguments(p.PID, p.facts.raw): // the process has ended; keep the parent's environment
	default:
		if env, called := parseEnviron(b), t.called(p); env != p.facts.env || called != p.facts.called {
			p.change(func(f *facts) { f.env, f.called = env, t.intern(called) })
		}
	}
	t.settle(p)
}

// called returns the name under which a program was started. It returns "" if
// the program's file has the same name. Several programs may be links to one
// file. The process's name and the first argument must agree, because a
// program can change either of them.
func (t *Table) called(p *Process) string {
	file := path.Base(p.facts.path)
	if p.Name == "" || p.Name == file {
		return ""
	}
	b, err := t.fs.readMemory(p.PID, "cmdline", p.facts.raw, maxValue)
	if err != nil {
		return ""
	}
	argument, _, _ := bytes.Cut(b, []byte{0})
	argument, _, _ = bytes.Cut(argument, []byte{' '}) // redis-server appends its address
	if bytes.HasPrefix(argument, []byte("/proc/")) || bytes.HasPrefix(argument, []byte("/dev/")) {
		return "" // the program started itself again by a descriptor's name, such as exe
	}
	const kernelLimit = 15 // the kernel truncates longer names
	name := text(argument[bytes.LastIndexByte(argument, '/')+1:], maxComm)
	agree := name == p.Name || len(p.Name) == kernelLimit && strings.HasPrefix(name, p.Name)
	if !agree || name == file {
		return ""
	}
	return name
}

// list makes Settle read the data of a process's program. It returns false if
// Limits.Starts programs have already been listed in this batch.
func (t *Table) list(p *Process) bool {
	if t.startsLeft == 0 {
		t.stats.StartsLeftOut++
		return false
	}
	t.startsLeft--
	p.listed = p.program
	t.started = append(t.started, start{p: p, program: p.program, since: t.cfg.Now()})
	return true
}

// settle ends the wait for a program's environment. Samples that wait for the
// environment get the current resource.
func (t *Table) settle(p *Process) {
	p.starting = false
	unsettled := p.unsettled
	if unsettled == nil {
		return
	}
	p.unsettled, p.Resource = nil, nil
	t.describe(p)
	unsettled.Settle(p.Resource)
}

// readMembership reads the cgroup of a process in each hierarchy.
func (t *Table) readMembership(p *Process) {
	p.membershipBatch = t.batch
	if t.cfg.Tree == nil {
		return
	}
	b, cut, err := t.fs.read(t.fs.File(p.PID, "cgroup"), cgroup.MaxPaths)
	if err != nil || cut || p.facts.raw == string(b) {
		return
	}
	at, err := t.memberships.parse(b)
	switch {
	case errors.Is(err, cgroup.ErrOutside):
		at.raw = string(b) // avoids parsing it again
	case err != nil:
		return
	}
	p.change(func(f *facts) { f.membership = at })
}

// readMaps reads the mappings of a process.
func (t *Table) readMaps(p *Process, alive bool) {
	if p.facts.kernel {
		p.enterEmptySpace()
		return
	}
	if alive {
		b, err := t.maps(p)
		p.silent = p.silent || isLate(err) || errors.Is(err, errNoTime)
		if err == nil && (len(b) > 0 || p.space == nil) {
			t.replaceMappings(p, b)
			return
		}
	}
	if p.space != nil {
		return
	}
	// A child that ended before it was read has its parent's mappings, as long as neither
	// the child nor the parent has started another program.
	if parent, ok := t.processes.Peek(p.PPID); ok && !p.execed && p.parent == parent.program {
		if parent.space == nil {
			if b, err := t.maps(parent); err == nil {
				t.replaceMappings(parent, b)
			}
		}
		p.shareSpace(parent)
	}
	p.enterEmptySpace()
}

// errNoTime means that no CPU time is left to read a process's mappings.
var errNoTime = errors.New("no CPU time is left for it")

// maps returns the content of a process's maps file.
func (t *Table) maps(p *Process) ([]byte, error) {
	if !t.cfg.Budget.May(p.PID) {
		return nil, errNoTime
	}
	return t.fs.readMemory(p.PID, "maps", p.facts.raw, procfs.MaxMaps)
}

// describe recreates the resource of a process after its data has changed.
func (t *Table) describe(p *Process) {
	if p.Resource != nil {
		return
	}
	p.Resource = t.resource(p)
	if p.starting {
		if p.unsettled == nil {
			p.unsettled = new(samples.Starting)
		}
		p.Resource.Starting = p.unsettled
	}
	p.Cgroup = p.facts.group.Cgroup
	p.Wanted = t.cfg.Wanted.match(p.PID, p.facts)
}

// Mapping returns the executable mapping at an address, or nil if no file is mapped there.
func (p *Process) Mapping(address uint64) *samples.Mapping { return p.space.mapping(address) }

// Mapped returns the executable mappings, sorted by address.
// The caller must not change them.
func (p *Process) Mapped() []*samples.Mapping { return p.space.mappings }

// Program returns the number of the program that the process runs. No two programs of a
// table have the same number.
func (p *Process) Program() uint64 { return p.program }

// ContainerID returns the id of the process's container, or "" without a container.
func (p *Process) ContainerID() string { return p.facts.group.ContainerID }

// ExecutableAndLibc returns the mappings of the executable and of the C library. A missing
// mapping is nil. All stacks of a native program go through these files.
func (p *Process) ExecutableAndLibc() (executable, libc *samples.Mapping) {
	for _, m := range p.space.mappings {
		switch {
		case executable == nil && m.Path == p.facts.path:
			executable = m
		case libc == nil && isLibC(m.Path):
			libc = m
		}
	}
	return executable, libc
}

// isLibC reports whether a file has the name of a C library. The file of glibc is
// named libc.so.6. Before glibc 2.34, it had a name such as libc-2.31.so. musl's C
// library is also its dynamic linker.
func isLibC(file string) bool {
	name := path.Base(file)
	return strings.HasPrefix(name, "libc.so.") || strings.HasPrefix(name, "libc-2.") ||
		strings.HasPrefix(name, "ld-musl-") || strings.HasPrefix(name, "libc.musl-")
}

// thread is one thread of a process.
type thread struct{ pid, tid int }

// ThreadName returns the name of a thread, or "" if it is unknown.
func (t *Table) ThreadName(pid, tid int) string {
	p := t.last
	if p == nil || p.PID != pid {
		var ok bool
		if p, ok = t.processes.Peek(pid); !ok {
			return ""
		}
	}
	if tid == pid {
		return p.Name
	}
	if name, ok := p.threads[tid]; ok {
		return name
	}
	name, _ := t.fs.threadName(pid, tid)
	name = t.intern(name)
	p.setThreadName(tid, name) // also stored if unknown, so that it is read only once
	return name
}

// Thread returns a thread. The result contains the name and
// the id only if they are wanted.
func (t *Table) Thread(pid, tid int, name, id bool) (thread samples.Thread) {
	if name {
		thread.Name = t.ThreadName(pid, tid)
	}
	if id {
		thread.ID = int32(tid)
	}
	return thread
}

func (p *Process) setThreadName(tid int, name string) {
	if tid == p.PID {
		p.Name = name
		return
	}
	t := p.table
	if _, known := p.threads[tid]; !known {
		if t.stats.ThreadNames >= t.cfg.Limits.ThreadNames {
			t.stats.ThreadNameResets++
			t.dropThreadNames()
		}
		if p.threads == nil {
			p.threads = make(map[int]string)
		}
		t.stats.ThreadNames++
	}
	p.threads[tid] = name
}

func (p *Process) dropThreadName(tid int) {
	if _, known := p.threads[tid]; known {
		delete(p.threads, tid)
		p.table.stats.ThreadNames--
	}
}

func (p *Process) dropThreadNames() {
	p.table.stats.ThreadNames -= len(p.threads)
	p.threads = nil
}

func (t *Table) dropThreadNames() {
	for _, p := range t.processes.Values() {
		p.dropThreadNames()
	}
}

// forkThread gives a new thread the name of its creator, as the kernel does. If the
// creator's name is unknown, the name of the new thread is read when it is needed.
func (p *Process) forkThread(tid, ptid int) {
	name, ok := p.threads[ptid]
	if ptid == p.PID {
		name, ok = p.Name, p.Name != ""
	}
	if !ok {
		p.dropThreadName(tid) // the name of an earlier thread with this id
		return
	}
	p.setThreadName(tid, name)
}

// facts are the properties of the program that a process runs. They are replaced and never
// changed, so that forked children can share them.
type facts struct {
	// path is the path of the executable as the process sees it. It
	// is empty if the path is unknown.
	path string
	// called is the name under which the program was started. It is empty if the program's
	// file has the same name.
	called string
	// kernel reports whether the process is a kernel thread.
	kernel bool
	// root identifies the root directory. It is 0 if the root directory is unknown.
	root uint64
	membership
	env environment
}

// membership is the cgroup of a process in each hierarchy.
type membership struct {
	// raw is the content of /proc/PID/cgroup. It is compared to
	// detect that the process has moved.
	raw   string
	paths cgroup.Paths
	group cgroup.Group
}

// maxMemberships is the maximum number of cached memberships. maxMembershipBytes is the
// maximum size in bytes of a cache that does not belong to a Table. A cache is cleared
// before it exceeds its limit.
const (
	maxMemberships     = 4096
	maxMembershipBytes = 1 << 20
)

// membershipCache parses the content of cgroup files. It parses the same content only
// once for all processes of a cgroup.
type membershipCache struct {
	tree  *cgroup.Tree
	known map[string]membership
	// bytes is the memory of the memberships. limit is the maximum of bytes.
	bytes, limit int
}

func newMembershipCache(tree *cgroup.Tree, limit int) *membershipCache {
	return &membershipCache{tree: tree, known: make(map[string]membership), limit: limit}
}

// parse returns the membership that a cgroup file describes. It returns the error of the
// tree if the content is malformed or the tree cannot see the cgroup.
func (c *membershipCache) parse(raw []byte) (membership, error) {
	if m, ok := c.known[string(raw)]; ok {
		return m, nil
	}
	paths, err := c.tree.ParsePaths(raw)
	if err != nil {
		return membership{}, err
	}
	m := membership{raw: string(raw), paths: paths, group: c.tree.GroupOf(paths)}
	n := 3*len(m.raw) + stringBytes + 256 // including the paths
	if len(c.known) >= maxMemberships || c.bytes+n > c.limit {
		clear(c.known)
		c.bytes = 0
	}
	c.known[m.raw] = m
	c.bytes += n
	return m, nil
}
