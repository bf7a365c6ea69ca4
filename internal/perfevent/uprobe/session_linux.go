// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/record"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/rights"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// Session is a set of probes with the rings that receive their hits. One goroutine calls
// Wait and Read. All other methods may be called from any goroutine.
//
// A probe is in a file, and every process that runs the file hits the probe. The reader
// decides which processes count. Probes per process would need an event per thread and CPU,
// and the kernel would visit each event at every hit. They would also need the same rights
// as probes for the whole host.
//
// Probes are placed through perf's own device, so tracefs is not needed.
type Session struct {
	ring.Waiter
	rings  ring.Set
	reader *record.Reader
	device uint32 // type of the events of probes
	limit  int    // maximum number of descriptors
	// hits are the events that own the rings for hits, by index in CPUs.
	hits  []int
	depth int // of stacks

	// mu guards the probes and their number of events.
	mu       sync.Mutex
	probes   map[*Probe]struct{}
	attached int // number of events of all probes

	// events maps the id in a record to its probe. The map is replaced, never modified.
	events atomic.Pointer[map[uint64]*Probe]
}

// Open maps the rings. Recording starts with the first probe. If probes are not permitted,
// the error is a *perfevent.RightsError. If the kernel does not support probes, the error
// is a *perfevent.UnsupportedError.
func Open(o Options) (*Session, error) {
	device, err := deviceType()
	if err != nil {
		return nil, err
	}
	cpus, err := sys.ChooseCPUs(o.CPUs)
	if err != nil {
		return nil, err
	}
	s := &Session{
		device: device,
		limit:  sys.DescriptorLimit(o.MaxDescriptors),
		depth:  sys.StackDepth(),
		probes: make(map[*Probe]struct{}),
	}
	s.Waiter = s.rings.Waiter()
	if rings := 2 * len(cpus); rings > s.limit {
		return nil, &rights.LimitError{Needed: rings, Limit: s.limit}
	}
	s.events.Store(&map[uint64]*Probe{})
	size := o.Ring
	if size <= 0 {
		size = defaultRing
	}
	size = ring.Size(size)
	if err := s.rings.Open("probes", cpus, func(cpu int) error { return s.openRings(cpu, size) }, func() bool { return ring.Halve(&size) }); err != nil {
		return nil, rights.Explain(rights.Uprobes, "following probes in programs", err)
	}
	s.reader = record.NewReader(s.rings.Rings(), record.Decoder{MaxStack: s.depth}, sys.Monotonic)
	return s, nil
}

// deviceType returns the type of perf's uprobe events. The kernel chooses the type at boot.
func deviceType() (uint32, error) {
	text, err := os.ReadFile("/sys/bus/event_source/devices/uprobe/type")
	if err != nil {
		return 0, unsupported(err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return 0, unsupported(err)
	}
	return uint32(n), nil
}

func unsupported(err error) error {
	return &rights.UnsupportedError{
		Feature: "probes in programs",
		Needs:   "Linux 4.17 or later with CONFIG_UPROBE_EVENTS, and /sys mounted",
		Err:     err,
	}
}

// openRings maps a CPU's rings. One ring is for hits. The other is for new mappings and
// names, which are needed to resolve the stacks of hits. With separate rings, programs that
// start do not displace hits.
func (s *Session) openRings(cpu, size int) error {
	const records = unix.PerfBitMmap | unix.PerfBitMmap2 | unix.PerfBitComm | unix.PerfBitCommExec
	if _, err := s.openRing(cpu, min(size, recordRing), records, ring.Records); err != nil {
		return err
	}
	fd, err := s.openRing(cpu, size, 0, ring.Samples)
	// If a CPU went offline, its rings are closed and its index is reused.
	s.hits = append(s.hits[:len(s.CPUs())], fd)
	return err
}

func (s *Session) openRing(cpu, size int, bits uint64, kinds ring.Kinds) (fd int, err error) {
	anchor := attr(unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_DUMMY, bits)
	anchor.Wakeup = uint32(size / 4)
	r, err := ring.Map(anchor, sys.AllProcesses, cpu, size)
	if err != nil {
		return -1, err
	}
	r.Kinds = kinds
	s.rings.Add(r)
	return r.FD, nil
}

func attr(kind uint32, config, bits uint64) *unix.PerfEventAttr {
	const sampleType = unix.PERF_SAMPLE_IDENTIFIER | unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_TIME |
		unix.PERF_SAMPLE_CPU | unix.PERF_SAMPLE_PERIOD | unix.PERF_SAMPLE_CALLCHAIN
	return sys.Attr(kind, config, sampleType, bits|unix.PerfBitExcludeKernel)
}

// used returns the number of open descriptors.
func (s *Session) used() int { return s.rings.Len() + s.attached }

// Read fills rec with the next record of a round. It merges all rings by time. It returns
// false at the end of the round, or after Close. It does not allocate.
func (s *Session) Read(rec *Record) bool {
	s.rings.Reading.Lock()
	defer s.rings.Reading.Unlock()
	if s.rings.Closed() {
		return false
	}
	var words []uint64
	if words, s.rings.Unfinished = s.reader.Next(&rec.Record); words == nil {
		return false
	}
	rec.Probe = nil
	if rec.Type == record.TypeSample {
		rec.Probe = (*s.events.Load())[rec.ID]
		rec.Value, rec.HasValue = registerOf(words)
	}
	return true
}

// Stats returns the counters.
func (s *Session) Stats() Stats {
	return Stats{
		Lost:        s.reader.Lost.Load() + s.reader.LostSamples.Load(),
		LostRecords: s.reader.LostRecords.Load(),
		Corrupt:     s.reader.Corrupt.Load(),
	}
}

// Descriptors returns the number of open descriptors.
func (s *Session) Descriptors() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used()
}

// Close removes all probes and ends a current Wait. A second Close has no effect.
func (s *Session) Close() error {
	return s.rings.Close(func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		var errs []error
		for p := range s.probes {
			errs = append(errs, s.detach(p))
		}
		return errors.Join(errs...)
	})
}
