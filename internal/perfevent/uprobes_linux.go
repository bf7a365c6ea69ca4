// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Uprobes are probes in programs (uprobes), placed through perf's own device, so
// that no tracefs is needed. A probe is in a file, and is hit by every process
// that runs it; whose hits count is for the reader to say. One goroutine calls
// Wait and Read; everything else may be called from any.
//
// A probe per process would take an event per thread and CPU, each of which the
// kernel goes through at every hit. The right to place probes is that to follow
// the whole host, so nothing is gained by less.
type Uprobes struct {
	recordRings
	device uint32
	limit  int
	depth  int

	// mu guards what is attached.
	mu       sync.Mutex
	probes   map[*Uprobe]struct{}
	attached int // events of probes

	// events finds the probe that wrote a record by the event's id. It is replaced,
	// never changed.
	events atomic.Pointer[map[uint64]*Uprobe]

	lost atomic.Uint64
}

// Uprobe is one place in a file.
type Uprobe struct {
	owner *Uprobes
	what  string
	path  []byte // which the kernel reads while an event is opened
	fds   []int
	ids   []uint64
}

// String names the probe as an error or a log line does.
func (p *Uprobe) String() string { return p.what }

// OpenUprobes makes the rings; nothing is heard until a probe is attached. Where
// probes are not permitted, the error is a *RightsError, where there are none it
// is ErrNoUprobes.
func OpenUprobes(o UprobeOptions) (*Uprobes, error) {
	device, err := probeDevice()
	if err != nil {
		return nil, err
	}
	cpus, err := chosen(o.CPUs)
	if err != nil {
		return nil, err
	}
	p := &Uprobes{
		device: device,
		limit:  descriptorLimit(o.MaxDescriptors),
		depth:  stackDepth(),
		probes: make(map[*Uprobe]struct{}),
	}
	p.decoder = decoder{maxStack: p.depth}
	p.events.Store(&map[uint64]*Uprobe{})
	size := o.Ring
	if size <= 0 {
		size = defaultProbeRing
	}
	size = ringSize(size)
	if len(cpus) > p.limit {
		return nil, &LimitError{Needed: len(cpus), Limit: p.limit}
	}
	p.what = "probes"
	if err := p.open(cpus, func(cpu int) error { return p.openRing(cpu, size) }, func() bool { return halve(&size) }); err != nil {
		return nil, explainProbe("following probes in programs", err)
	}
	p.merge()
	return p, nil
}

// probeDevice is the type of perf's uprobe events, which the kernel gives out at
// its start.
func probeDevice() (uint32, error) {
	text, err := os.ReadFile("/sys/bus/event_source/devices/uprobe/type")
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNoUprobes, err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNoUprobes, err)
	}
	return uint32(n), nil
}

// openRing maps a CPU's ring from an event that tells of new mappings and names,
// which hits are read with.
func (p *Uprobes) openRing(cpu, size int) error {
	anchor := p.attr(unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_DUMMY, unix.PerfBitMmap|unix.PerfBitMmap2|unix.PerfBitComm|unix.PerfBitCommExec)
	anchor.Wakeup = uint32(size / 4)
	r, err := mapRing(anchor, pidAll, cpu, size)
	if err != nil {
		return err
	}
	r.records = true
	p.add(r)
	return nil
}

func (p *Uprobes) attr(kind uint32, config, bits uint64) *unix.PerfEventAttr {
	return &unix.PerfEventAttr{
		Type:   kind,
		Size:   uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Config: config,
		Sample_type: unix.PERF_SAMPLE_IDENTIFIER | unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME |
			unix.PERF_SAMPLE_CPU | unix.PERF_SAMPLE_PERIOD | unix.PERF_SAMPLE_CALLCHAIN,
		Bits:    bits | unix.PerfBitExcludeKernel | unix.PerfBitSampleIDAll | unix.PerfBitUseClockID | unix.PerfBitExcludeHv | unix.PerfBitWatermark,
		Clockid: unix.CLOCK_MONOTONIC,
	}
}

// Attach places a probe at an offset in a file, before the instruction there.
// register is the one that records show, as the kernel numbers it: its bit in
// PERF_SAMPLE_REGS_USER. The file may be closed after.
func (p *Uprobes) Attach(f *os.File, offset uint64, register int) (*Uprobe, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The descriptor's own link leads to the very file, whatever its path says by
	// now and in whose root it is.
	probe := &Uprobe{
		owner: p,
		what:  fmt.Sprintf("probe at %#x in %s", offset, f.Name()),
		path:  []byte("/proc/self/fd/" + strconv.Itoa(int(f.Fd())) + "\x00"),
	}
	defer runtime.KeepAlive(f)
	if p.closed.Load() {
		return nil, fmt.Errorf("placing the %s: %w", probe, os.ErrClosed)
	}
	if err := p.place(probe, offset, register); err != nil {
		return nil, errors.Join(explainProbe("placing the "+probe.what, err), p.closeEvents(probe))
	}
	p.publish(probe, true)
	p.probes[probe] = struct{}{}
	for _, fd := range probe.fds {
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
			return nil, errors.Join(fmt.Errorf("placing the %s: %w", probe, err), p.detach(probe))
		}
	}
	return probe, nil
}

func (p *Uprobes) place(probe *Uprobe, offset uint64, register int) error {
	attr := p.attr(p.device, 0, unix.PerfBitDisabled)
	attr.Sample = 1
	attr.Sample_max_stack = uint16(p.depth)
	attr.Sample_type |= unix.PERF_SAMPLE_REGS_USER
	attr.Sample_regs_user = 1 << register
	attr.Ext1 = uint64(uintptr(unsafe.Pointer(&probe.path[0])))
	attr.Ext2 = offset
	if needed := p.used() + len(p.cpus); needed > p.limit {
		return &LimitError{Needed: needed, Limit: p.limit}
	}
	for i, cpu := range p.cpus {
		fd, err := openEvent(attr, pidAll, cpu, 0)
		runtime.KeepAlive(probe)
		if errors.Is(err, unix.ENODEV) {
			continue // went offline
		}
		if err != nil {
			return err
		}
		p.attached++
		probe.fds = append(probe.fds, fd)
		if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_OUTPUT, p.rings[i].fd); err != nil {
			return fmt.Errorf("redirecting the event of CPU %d: %w", cpu, err)
		}
		id, err := eventID(fd)
		if err != nil {
			return fmt.Errorf("reading the id of the event of CPU %d: %w", cpu, err)
		}
		probe.ids = append(probe.ids, id)
	}
	return nil
}

// explainProbe turns the kernel's answer into what can be done about it. No
// sysctl permits probes.
func explainProbe(what string, err error) error {
	var ring *ringError
	if errors.As(err, &ring) || !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
		return explain(scopeHost, what, err)
	}
	return missingForProbes(what, look(err), err)
}

func (p *Uprobes) publish(probe *Uprobe, with bool) {
	events := maps.Clone(*p.events.Load())
	for _, id := range probe.ids {
		if with {
			events[id] = probe
		} else {
			delete(events, id)
		}
	}
	p.events.Store(&events)
}

// Detach takes the probe away. What it left in the rings is still read, without a
// Uprobe. A second Detach does nothing.
func (p *Uprobe) Detach() error {
	p.owner.mu.Lock()
	defer p.owner.mu.Unlock()
	return p.owner.detach(p)
}

func (p *Uprobes) detach(probe *Uprobe) error {
	if _, ok := p.probes[probe]; !ok {
		return nil
	}
	delete(p.probes, probe)
	p.publish(probe, false)
	return p.closeEvents(probe)
}

func (p *Uprobes) closeEvents(probe *Uprobe) error {
	var errs []error
	for _, fd := range probe.fds {
		errs = append(errs, unix.Close(fd))
	}
	p.attached -= len(probe.fds)
	probe.fds, probe.ids = nil, nil
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("taking away the %s: %w", probe.what, err)
	}
	return nil
}

// used is how many descriptors are open.
func (p *Uprobes) used() int { return len(p.rings) + p.attached }

// Read fills rec with the next record of a round, all rings merged by time. It
// returns false at the round's end, or after Close. It allocates nothing.
func (p *Uprobes) Read(rec *UprobeRecord) bool {
	p.reading.Lock()
	defer p.reading.Unlock()
	words, _ := p.next(&rec.Record)
	if words == nil {
		return false
	}
	p.complete(words, rec)
	return true
}

func (p *Uprobes) complete(words []uint64, rec *UprobeRecord) {
	rec.Attachment, rec.Uprobe = nil, nil
	switch rec.Type {
	case TypeSample:
		rec.Uprobe = (*p.events.Load())[rec.ID]
		rec.Value, rec.Valued = register(words)
	case TypeLost, TypeLostSamples:
		rec.Type = TypeLost
		rec.Lost.Records = true
		p.lost.Add(rec.Lost.Count)
	}
}

// Stats returns the counters.
func (p *Uprobes) Stats() UprobeStats {
	return UprobeStats{Lost: p.lost.Load(), Corrupt: p.corrupt.Load()}
}

// Descriptors is how many are open.
func (p *Uprobes) Descriptors() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used()
}

// Close takes all probes away. A Wait under way returns. A second Close does
// nothing.
func (p *Uprobes) Close() error {
	return p.close(func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		var errs []error
		for probe := range p.probes {
			errs = append(errs, p.detach(probe))
		}
		p.merger = nil
		return errors.Join(errs...)
	})
}
