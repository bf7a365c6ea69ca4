// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/rights"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// Probe is a probe at one offset of a file.
type Probe struct {
	session *Session
	what    string
	path    []byte // ends in NUL; the kernel reads it while an event is opened
	fds     []int
	ids     []uint64
}

// String names the probe for errors and log lines.
func (p *Probe) String() string { return p.what }

// Attach places a probe before the instruction at an offset of a file. Records contain the
// given register, numbered as in PERF_SAMPLE_REGS_USER. The file may be closed afterwards.
func (s *Session) Attach(f *os.File, offset uint64, register int) (*Probe, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The descriptor's link leads to exactly this file, even if the path now leads to
	// another file or is relative to another root.
	p := &Probe{
		session: s,
		what:    fmt.Sprintf("probe at %#x in %s", offset, f.Name()),
		path:    []byte("/proc/self/fd/" + strconv.Itoa(int(f.Fd())) + "\x00"),
	}
	defer runtime.KeepAlive(f)
	if s.rings.Closed() {
		return nil, fmt.Errorf("placing the %s: %w", p, os.ErrClosed)
	}
	if err := s.openEvents(p, offset, register); err != nil {
		return nil, errors.Join(rights.Explain(rights.Uprobes, "placing the "+p.what, err), s.closeEvents(p))
	}
	known := maps.Clone(*s.events.Load())
	for _, id := range p.ids {
		known[id] = p
	}
	s.events.Store(&known)
	s.probes[p] = struct{}{}
	for _, fd := range p.fds {
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
			return nil, errors.Join(fmt.Errorf("placing the %s: %w", p, err), s.detach(p))
		}
	}
	return p, nil
}

// openEvents opens one disabled event per CPU.
func (s *Session) openEvents(p *Probe, offset uint64, register int) error {
	a := attr(s.device, 0, unix.PerfBitDisabled)
	a.Sample = 1
	a.Sample_max_stack = uint16(s.depth)
	a.Sample_type |= unix.PERF_SAMPLE_REGS_USER
	a.Sample_regs_user = 1 << register
	a.Ext1 = uint64(uintptr(unsafe.Pointer(&p.path[0]))) // uprobe_path
	a.Ext2 = offset                                      // probe_offset
	cpus := s.CPUs()
	if needed := s.used() + len(cpus); needed > s.limit {
		return &rights.LimitError{Needed: needed, Limit: s.limit}
	}
	for i, cpu := range cpus {
		fd, err := sys.Open(a, sys.AllProcesses, cpu, 0)
		runtime.KeepAlive(p)
		if errors.Is(err, unix.ENODEV) {
			continue // the CPU went offline
		}
		if err != nil {
			return err
		}
		s.attached++
		p.fds = append(p.fds, fd)
		if err := sys.SetOutput(fd, s.hits[i], cpu); err != nil {
			return err
		}
		id, err := sys.EventID(fd)
		if err != nil {
			return err
		}
		p.ids = append(p.ids, id)
	}
	return nil
}

// Detach removes the probe. Read still returns the hits left in the rings, but without a
// Probe. A second Detach has no effect.
func (p *Probe) Detach() error {
	p.session.mu.Lock()
	defer p.session.mu.Unlock()
	return p.session.detach(p)
}

func (s *Session) detach(p *Probe) error {
	if _, ok := s.probes[p]; !ok {
		return nil
	}
	delete(s.probes, p)
	known := maps.Clone(*s.events.Load())
	for _, id := range p.ids {
		delete(known, id)
	}
	s.events.Store(&known)
	return s.closeEvents(p)
}

func (s *Session) closeEvents(p *Probe) error {
	var errs []error
	for _, fd := range p.fds {
		errs = append(errs, unix.Close(fd))
	}
	s.attached -= len(p.fds)
	p.fds, p.ids = nil, nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("removing the %s: %w", p.what, err)
	}
	return nil
}
