// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/record"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/rights"
)

// probeRing is the default size in bytes of each CPU's ring in a session that samples
// probes. It has room for 50 ms of hits of a program that allocates 10 GB per second.
const probeRing = 512 << 10

// AttachProbe places a probe before the instruction at an offset of a file. The session
// must be HostWide. It must also sample probes, or sample time with copies of stacks.
// Read returns each hit as a TypeSample with registers. If the session samples probes,
// the sample also has a stack. The file may be closed afterwards.
//
// Every process that runs the file hits the probe, and the reader decides which
// processes count. Probes per process would need an event per thread and CPU, and the
// kernel would visit each event at every hit. They would also need the same rights as
// probes for the whole host. Probes are placed through perf's own device, so tracefs is
// not needed.
func (s *Session) AttachProbe(f *os.File, offset uint64) (*Attachment, error) {
	defer runtime.KeepAlive(f)
	if s.registers == (record.RegisterSet{}) || s.switches || len(s.tracepoints) > 0 {
		return nil, errors.New("placing a probe: the session samples neither probes nor time with copies of stacks")
	}
	return s.attach(&Attachment{
		session: s,
		what:    fmt.Sprintf("probe at %#x in %s", offset, f.Name()),
		// The descriptor's link leads to exactly this file, even if the path now leads to
		// another file or is relative to another root.
		path:   []byte("/proc/self/fd/" + strconv.Itoa(int(f.Fd())) + "\x00"),
		offset: offset,
	})
}

// probe returns the event of a probe. The event starts disabled. a must be kept
// alive while the event is opened.
func (s *Session) probe(a *Attachment) (*unix.PerfEventAttr, error) {
	kind, err := probeType()
	if err != nil {
		return nil, err
	}
	attr := s.attr(0, unix.PerfBitDisabled|unix.PerfBitExcludeKernel)
	attr.Type = kind
	attr.Sample = 1
	s.withStacks(attr)
	attr.Sample_stack_user = 0
	if !s.probes {
		attr.Bits |= unix.PerfBitExcludeCallchainUser
	}
	attr.Ext1 = uint64(uintptr(unsafe.Pointer(&a.path[0]))) // uprobe_path
	attr.Ext2 = a.offset                                    // probe_offset
	return attr, nil
}

// probeType returns the type of perf's uprobe events. The kernel chooses the type at boot.
func probeType() (uint32, error) {
	text, err := os.ReadFile("/sys/bus/event_source/devices/uprobe/type")
	var n uint64
	if err == nil {
		n, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	}
	if err != nil {
		return 0, &rights.UnsupportedError{
			Feature: "probes in programs",
			Needs:   "Linux 4.17 or later with CONFIG_UPROBE_EVENTS, and /sys mounted",
			Err:     err,
		}
	}
	return uint32(n), nil
}
