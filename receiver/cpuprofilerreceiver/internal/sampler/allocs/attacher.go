// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package allocs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/goprogram"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
)

// program describes a file that processes run. Only the attacher changes its fields, except
// hit.
type program struct {
	path string
	// Program contains the runtime's own code (Runs), and the address of
	// runtime.MemProfileRate (Variable). It may be nil if err is not nil.
	*goprogram.Program
	site site
	// err is the reason why the program's allocations cannot be sampled.
	err error

	// hit reports whether an allocation was sampled.
	hit atomic.Bool
	// Only the attacher uses the fields below. uprobe is nil while no process uses the
	// program. users is the number of processes that share the uprobe.
	uprobe *perfevent.Attachment
	users  int
	// quiet reports whether the absence of samples was logged. since is the time at which
	// the uprobe was placed.
	quiet bool
	since int64
}

// member is a sampled process.
type member struct {
	procfs.Process
	file    mappedfile.ID
	program *program
	uprobe  *perfevent.Attachment
	// rate is the program's runtime.MemProfileRate, or unknownRate if it cannot be read.
	rate atomic.Int64
	// capture is the time during which the process is sampled.
	capture samples.Capture

	// Only the reader uses reservoir.
	reservoir reservoir
	// waiting reports whether the reservoir has samples to emit.
	waiting bool
}

const unknownRate = -1

// maxPrograms bounds the number of remembered files, whether they are Go programs or not.
const maxPrograms = 1024

// attacher attaches to the wanted processes. It runs on its own goroutine, because the
// kernel blocks it while a uprobe is placed or removed.
type attacher struct {
	cfg      Settings
	files    procfs.FS
	access   mappedfile.Access
	link     *link
	wanted   []procfs.Process
	failing  bool // the last search failed
	known    *simplelru.LRU[mappedfile.ID, *program]
	attached map[int]*member
	keys     map[int]stuckread.Key // keys of the processes in this update
	logged   logged

	// The counters are safe for concurrent use.
	processes, programs atomic.Int64
}

// run searches for processes and attaches to them until ctx is done.
func (a *attacher) run(ctx context.Context) {
	defer a.end()
	tick := time.NewTicker(a.cfg.DiscoveryInterval)
	defer tick.Stop()
	for a.find(ctx); ctx.Err() == nil; {
		a.update(ctx)
		select {
		case <-tick.C:
			a.find(ctx)
		case <-a.cfg.Changed:
			a.find(ctx)
		case <-a.link.again:
		case <-ctx.Done():
		}
	}
}

// find searches for the wanted processes.
func (a *attacher) find(ctx context.Context) {
	found, err := a.cfg.Find(ctx)
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		a.wanted = found
	} else if !a.failing {
		a.cfg.Logger.Warn("looking for programs that allocate failed; what is sampled stays as it is",
			zap.Error(err), zap.Duration("retry_interval", a.cfg.DiscoveryInterval))
	}
	a.failing = err != nil
}

// update attaches to the wanted processes and detaches from all other processes.
func (a *attacher) update(ctx context.Context) {
	want := make(map[int]procfs.Process, len(a.wanted))
	for _, p := range a.wanted {
		want[p.PID] = p
	}
	a.keys = make(map[int]stuckread.Key)
	var leave []*member
	for pid, m := range a.attached {
		file, err := goprogram.Identify(&a.access, a.key(pid), pid)
		if p, ok := want[pid]; !ok || p != m.Process || err != nil || file != m.file {
			leave = append(leave, m)
		}
	}
	a.detach(leave)
	a.followCPUs()
	a.logged.reasons, a.logged.leftOut = nil, 0
	for _, p := range a.wanted {
		if ctx.Err() != nil {
			return
		}
		if m, ok := a.attached[p.PID]; ok {
			a.readRate(m)
			continue
		}
		if err := a.attach(p); err != nil && !procfs.IsGone(err) && !errors.Is(err, os.ErrProcessDone) { // the process still exists
			a.logged.leaveOut(err)
		}
	}
	a.publish()
	if len(a.attached) == 0 {
		a.close()
	}
	a.report()
}

// attach attaches to a process. It returns no error for a program that cannot be sampled.
func (a *attacher) attach(p procfs.Process) error {
	file, err := goprogram.Identify(&a.access, a.key(p.PID), p.PID)
	if err != nil {
		return fmt.Errorf("sampling allocations of process %d: %w", p.PID, err)
	}
	known, ok := a.known.Get(file)
	if ok && known.err != nil {
		return nil
	}
	if !ok || known.uprobe == nil {
		read := &query
		if ok {
			read = nil // the program is known
		}
		o, err := goprogram.Open(&a.access, p.PID, file, read)
		if err != nil {
			return fmt.Errorf("sampling allocations of process %d: %w", p.PID, err)
		}
		defer o.Close()
		if !ok {
			known = a.learn(o, file)
		}
		if known.err != nil {
			return nil
		}
		if err := a.place(known, o.File); err != nil {
			return err
		}
	}
	m := &member{Process: p, file: file, program: known, uprobe: known.uprobe}
	if now, err := a.files.Process(p.PID); err != nil || now != p {
		a.release(known)
		return nil // the process ended, and another process has its pid
	}
	known.users++
	m.capture.From = a.cfg.Now()
	a.readRate(m)
	a.attached[p.PID] = m
	return nil
}

// key returns the stuckread.Key of a process.
func (a *attacher) key(pid int) stuckread.Key {
	key, known := a.keys[pid]
	if !known {
		cgroup, _ := procfs.ReadFile(a.files.File(pid, "cgroup"), 4096) // for the common bound of the cgroup's processes
		key = stuckread.Key{Cgroup: string(cgroup), PID: pid}
		a.keys[pid] = key
	}
	return key
}

// learn remembers the data that was read from a file.
func (a *attacher) learn(o *goprogram.File, id mappedfile.ID) *program {
	p := &program{path: o.Name()}
	found, err := o.Program, o.Err
	if found != nil && err != nil && found.Version != "" {
		// Tables may be unreadable because the release is unknown.
		if _, layout := siteOf(found, runtime.GOARCH); layout != nil && !errors.Is(layout, errNoSampling) {
			err = layout
		}
	}
	if err == nil {
		p.Program = found
		p.site, err = siteOf(found, runtime.GOARCH)
	}
	p.err = err
	a.known.Add(id, p)
	if err != nil {
		level := zap.InfoLevel
		if errors.Is(err, goprogram.ErrNotGo) {
			level = zap.DebugLevel
		}
		a.cfg.Logger.Log(level, "allocations of a program are not sampled", zap.String("program", p.path), zap.Error(err))
	}
	return p
}

// place places the uprobe in a program.
func (a *attacher) place(p *program, f *os.File) error {
	u := a.link.uprobes.Load()
	if u == nil {
		var err error
		if u, err = perfevent.Open(perfevent.Options{HostWide: true, Probes: true, MaxDescriptors: a.cfg.MaxEvents}); err != nil {
			return err
		}
		a.link.uprobes.Store(u)
		a.link.notify()
	}
	probe, err := u.AttachProbe(f, p.site.offset)
	if err != nil {
		return err
	}
	p.uprobe, p.since = probe, a.cfg.Now()
	a.programs.Add(1)
	a.cfg.Logger.Debug("allocations of a program are sampled", zap.String("program", p.path))
	return nil
}

// readRate reads the program's runtime.MemProfileRate.
func (a *attacher) readRate(m *member) {
	rate, read := int64(unknownRate), int64(unknownRate)
	known := m.program.Variable != 0 && a.access.Runner.Run(a.key(m.PID), a.files.File(m.PID, "mem"), stuckread.ReadLimit, func(c *stuckread.Call) {
		c.Wait(nil, func() { read = a.rateOf(m) })
	}) == nil
	if known {
		rate = read
	}
	m.rate.Store(rate)
}

func (a *attacher) rateOf(m *member) int64 {
	var b [8]byte
	entry, err := a.files.EntryPoint(m.PID)
	if err != nil || a.files.ReadMemory(m.PID, b[:], m.program.Variable+entry-m.program.Entry) != nil {
		return unknownRate
	}
	return max(int64(binary.NativeEndian.Uint64(b[:])), unknownRate)
}

// detach detaches from processes, after their records have been read one last time.
func (a *attacher) detach(leave []*member) {
	if len(leave) == 0 {
		return
	}
	a.link.ask(false)
	for _, m := range leave {
		m.capture.End(a.cfg.Now())
		delete(a.attached, m.PID)
		m.program.users--
	}
	a.publish()
	for _, m := range leave {
		a.release(m.program)
	}
}

// release removes a uprobe that no process uses any more.
func (a *attacher) release(p *program) {
	if p.uprobe == nil || p.users > 0 {
		return
	}
	if err := p.uprobe.Detach(); err != nil {
		a.cfg.Logger.Debug("removing a uprobe failed", zap.Error(err))
	}
	p.uprobe = nil
	a.programs.Add(-1)
	a.cfg.Logger.Debug("allocations of a program are no longer sampled", zap.String("program", p.path))
}

// publish makes the members visible to the reader.
func (a *attacher) publish() {
	members := maps.Clone(a.attached)
	a.link.members.Store(&members)
	a.processes.Store(int64(len(a.attached)))
}

// followCPUs detaches everything and closes the rings if CPUs went offline or came online.
func (a *attacher) followCPUs() {
	u := a.link.uprobes.Load()
	if u == nil {
		return
	}
	cpus, err := perfevent.OnlineCPUs()
	if err != nil || !u.Stale(cpus) {
		return
	}
	a.detach(slices.Collect(maps.Values(a.attached)))
	a.close()
}

// close closes the rings, which ends sampling.
func (a *attacher) close() {
	u := a.link.uprobes.Swap(nil)
	if u == nil {
		return
	}
	if err := u.Close(); err != nil {
		a.cfg.Logger.Debug("closing uprobes failed", zap.Error(err))
	}
}

// end detaches from all processes.
func (a *attacher) end() {
	a.wanted = nil
	<-a.link.stopped // wait until the reader has read everything
	a.detach(slices.Collect(maps.Values(a.attached)))
	a.close()
}

// report logs changes of the attached programs. It logs each program without samples once.
func (a *attacher) report() {
	a.logged.report(a.cfg.Logger, a.cfg.When, len(a.attached), int(a.programs.Load()))
	now := a.cfg.Now()
	for _, m := range a.attached {
		p := m.program
		switch {
		case p.quiet || p.hit.Load():
		case a.rateIsZero(p):
			p.quiet = true
			a.cfg.Logger.Warn(msgQuiet, zap.String("program", p.path),
				zap.String("why", "its runtime.MemProfileRate is 0: it set that, or does not link the memory profiler (nothing in it refers to runtime.MemProfile)"))
		case time.Duration(now-p.since) >= a.cfg.Quiet:
			p.quiet = true
			a.cfg.Logger.Warn(msgQuiet, zap.String("program", p.path), zap.Duration("for", time.Duration(now-p.since)),
				zap.String("why", "it allocates next to nothing, or does not link the memory profiler (nothing in it refers to runtime.MemProfile), or has set runtime.MemProfileRate to 0"))
		}
	}
}

// rateIsZero reports whether every process of a program has a rate of 0.
func (a *attacher) rateIsZero(p *program) bool {
	for _, m := range a.attached {
		if m.program == p && m.rate.Load() != 0 {
			return false
		}
	}
	return true
}
