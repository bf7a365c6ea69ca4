// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bytes"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// The sample_type of an event determines the body of its records. All events
// read here share one sample_type:
//
//	PERF_SAMPLE_IDENTIFIER | TID | TIME | CPU | PERIOD | CALLCHAIN [| CGROUP]
//
// So a sample consists of these words of 8 bytes:
//
//	header, id, pid:tid, time, cpu:-, period, nr, ips[nr] [, registers and stack] [, cgroup]
//
// In a session that samples context switches, the period is missing. In a session that
// samples tracepoints, READ replaces PERIOD, and RAW is added:
//
//	header, id, pid:tid, time, cpu:-, hits [, lost], nr, ips[nr], raw [, registers and stack] [, cgroup]
//
// Any other record ends in struct sample_id, which sample_id_all adds:
//
//	pid:tid, time, cpu:-, id
const (
	sampleID     = 1
	sampleTID    = 2
	sampleTime   = 3
	sampleCPU    = 4
	samplePeriod = 5
	sampleIPs    = 7 // one less without a period

	trailerWords = 4
	trailerTID   = 0
	trailerTime  = 1
	trailerCPU   = 2
	trailerID    = 3
)

// DeepestSample is the maximum size in bytes of a sample without registers.
const DeepestSample = (sampleIPs + sys.MaxStackDepth + 4) * ring.WordSize

// outcome is the result of decoding a record.
type outcome uint8

const (
	decoded outcome = iota
	skipped         // no event here requests such records
	corrupt         // shorter than its header or counts declare
)

// Decoder decodes the kernel's records. Its fields must match the attributes of the perf
// events.
type Decoder struct {
	// Cgroup reports whether the sample_type includes PERF_SAMPLE_CGROUP.
	Cgroup bool
	// Switches reports whether the sample_type lacks PERF_SAMPLE_PERIOD.
	Switches bool
	// Hits reports whether the sample_type includes PERF_SAMPLE_RAW, and
	// PERF_SAMPLE_READ in place of PERF_SAMPLE_PERIOD. HitsLost reports whether the
	// read_format includes PERF_FORMAT_LOST.
	Hits, HitsLost bool
	// Registers selects the user-mode registers that each sample contains. A sample with
	// registers also contains a copy of the user's stack. The zero value means that samples
	// contain no registers and no copy.
	Registers RegisterSet
	// MaxStack is the depth at which the kernel truncates a stack.
	MaxStack int
}

// decode fills rec from words. The slices of rec then refer to words.
func (d *Decoder) decode(words []uint64, rec *Record) outcome {
	h, ok := ring.ParseRecord(words)
	if !ok {
		return corrupt
	}
	if h.Kind == sys.RecordSample {
		return d.sample(h, words, rec)
	}
	if len(words) < 1+trailerWords {
		return corrupt
	}
	body := words[1 : len(words)-trailerWords]
	trailer := words[len(words)-trailerWords:]
	rec.PID, rec.TID = ring.Halves(trailer[trailerTID])
	rec.Time = int64(trailer[trailerTime])
	rec.CPU, _ = ring.Halves(trailer[trailerCPU])
	rec.ID = trailer[trailerID]
	switch h.Kind {
	case sys.RecordMmap2:
		return rec.mmap2(h, body)
	case sys.RecordComm:
		return rec.comm(h, body)
	case sys.RecordFork:
		rec.Type = TypeFork
		return rec.task(body)
	case sys.RecordExit:
		rec.Type = TypeExit
		return rec.task(body)
	case sys.RecordLost: // {u64 id, lost}
		if len(body) < 2 {
			return corrupt
		}
		rec.Type, rec.Lost = TypeLost, Lost{Count: body[1]}
		return decoded
	case sys.RecordLostSamples: // {u64 lost}
		if len(body) < 1 {
			return corrupt
		}
		rec.Type, rec.Lost = typeLostSamples, Lost{Count: body[0]}
		return decoded
	case sys.RecordThrottle: // {u64 time, id, stream_id}
		rec.Type = typeThrottle
		return decoded
	case sys.RecordSwitch, sys.RecordSwitchCPUWide:
		rec.Type, rec.Switch = TypeSwitch, Switch{Out: h.Misc&sys.MiscSwitchOut != 0, Preempted: h.Misc&sys.MiscSwitchOutPreempt != 0}
		return decoded
	}
	return skipped
}

func (d *Decoder) sample(h ring.Header, words []uint64, rec *Record) outcome {
	tail, first := 0, sampleIPs
	if d.Cgroup {
		tail = 1
	}
	switch {
	case d.Switches:
		first--
	case d.HitsLost:
		first++
	}
	if len(words) < first+tail || words[first-1] > uint64(len(words)-first-tail) {
		return corrupt
	}
	rec.Type = TypeSample
	rec.ID = words[sampleID]
	rec.PID, rec.TID = ring.Halves(words[sampleTID])
	rec.Time = int64(words[sampleTime])
	rec.CPU, _ = ring.Halves(words[sampleCPU])
	s := &rec.Sample
	s.Period, s.Hits, s.HitsLost, s.Raw = 0, 0, 0, nil
	switch {
	case d.Hits:
		s.Hits = words[samplePeriod]
		if d.HitsLost {
			s.HitsLost = words[samplePeriod+1]
		}
	case !d.Switches:
		s.Period = int64(words[samplePeriod])
	}
	s.InKernel = h.Misc&sys.MiscCPUModeMask == sys.MiscKernel
	ips := words[first:][:words[first-1]]
	s.Kernel, s.User = split(ips, h.Misc)
	s.Truncated = len(s.Kernel)+len(s.User) >= d.MaxStack
	s.HasRegisters, s.Registers, s.Stack, s.CgroupID = false, Registers{}, nil, 0
	rest := words[first+len(ips):]
	if d.Hits {
		var ok bool
		if s.Raw, rest, ok = raw(rest); !ok || len(rest) < tail {
			return corrupt
		}
	}
	if d.Registers != (RegisterSet{}) {
		var ok bool
		if rest, ok = d.userStack(rest, s); !ok || len(rest) < tail {
			return corrupt
		}
	}
	if d.Cgroup {
		s.CgroupID = rest[0]
	}
	return decoded
}

// raw decodes {u32 size; char data[size]}, whose total length must be a whole number of
// words. It returns the data and the words that follow it.
func raw(words []uint64) (data []byte, rest []uint64, ok bool) {
	if len(words) == 0 {
		return nil, nil, false
	}
	size, _ := ring.Halves(words[0])
	n := (size + 4) / ring.WordSize
	if size < 0 || (size+4)%ring.WordSize != 0 || n > len(words) {
		return nil, nil, false
	}
	return ring.Bytes(words[:n])[4:], words[n:], true
}

// split returns the kernel's and the user's part of a callchain. Each part is the first
// run of addresses after its marker. Addresses of other contexts (guest, hypervisor) are
// omitted, and the kernel's part ends before an address that is not a kernel address.
func split(ips []uint64, misc uint16) (kernel, user []uint64) {
	context := sys.ContextUser
	if misc&sys.MiscCPUModeMask == sys.MiscKernel {
		context = sys.ContextKernel
	}
	for start := 0; start < len(ips); {
		if ips[start] >= sys.ContextMax {
			context = ips[start]
			start++
			continue
		}
		end := start
		for end < len(ips) && ips[end] < sys.ContextMax && (context != sys.ContextKernel || ips[end] >= leastKernel) {
			end++
		}
		switch {
		case context == sys.ContextKernel && kernel == nil:
			kernel = ips[start:end:end]
		case context == sys.ContextUser && user == nil:
			user = ips[start:end:end]
		}
		start = max(end, start+1)
	}
	return kernel, user
}

// leastKernel is the lowest kernel address. A kernel stack may seem to contain lower
// addresses, for example where the kernel cannot unwind the stack.
const leastKernel = 1 << 63

// mmap2 decodes the body of PERF_RECORD_MMAP2: {u32 pid, tid; u64 addr, len, pgoff; u32
// maj, min; u64 ino, ino_generation; u32 prot, flags; char filename[]}. With
// PERF_RECORD_MISC_MMAP_BUILD_ID, {u8 build_id_size, reserved; u16 reserved; u8
// build_id[20]} replaces the fields maj to ino_generation.
func (rec *Record) mmap2(h ring.Header, body []uint64) outcome {
	const fixed = 8
	if len(body) < fixed {
		return corrupt
	}
	rec.Type, rec.Mmap = TypeMmap, Mmap{Address: body[1], Length: body[2], Offset: body[3]}
	m := &rec.Mmap
	m.PID, m.TID = ring.Halves(body[0])
	if h.Misc&sys.MiscMmapBuildID != 0 {
		id := ring.Bytes(body[4:7])
		m.BuildID = id[4:][:min(int(id[0]), 20)]
	} else {
		major, minor := ring.Halves(body[4])
		m.DeviceMajor, m.DeviceMinor = uint32(major), uint32(minor)
		m.Inode = body[5]
	}
	prot, flags := ring.Halves(body[7])
	m.Prot, m.Flags = uint32(prot), uint32(flags)
	m.Filename = untilNUL(ring.Bytes(body[fixed:]))
	return decoded
}

// comm decodes the body of PERF_RECORD_COMM: {u32 pid, tid; char comm[]}.
func (rec *Record) comm(h ring.Header, body []uint64) outcome {
	if len(body) < 1 {
		return corrupt
	}
	rec.Type = TypeComm
	rec.Comm.PID, rec.Comm.TID = ring.Halves(body[0])
	rec.Comm.Name = untilNUL(ring.Bytes(body[1:]))
	rec.Comm.Exec = h.Misc&sys.MiscCommExec != 0
	return decoded
}

// task decodes the body of PERF_RECORD_FORK and PERF_RECORD_EXIT: {u32 pid, ppid,
// tid, ptid; u64 time}.
func (rec *Record) task(body []uint64) outcome {
	if len(body) < 3 {
		return corrupt
	}
	t := &rec.Task
	t.PID, t.PPID = ring.Halves(body[0])
	t.TID, t.PTID = ring.Halves(body[1])
	return decoded
}

// untilNUL cuts a C string at its NUL byte.
func untilNUL(b []byte) []byte {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return b[:i]
	}
	return b
}
