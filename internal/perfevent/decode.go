// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"bytes"
	"encoding/binary"
	"unsafe"
)

// A record is struct perf_event_header {u32 type; u16 misc; u16 size} and a body
// whose layout follows from the event's sample_type. All events here share one:
//
//	PERF_SAMPLE_IDENTIFIER | TID | TIME | CPU | PERIOD | CALLCHAIN [| CGROUP]
//
// so a sample is, in words of 8 bytes,
//
//	header, id, pid:tid, time, cpu:-, period, nr, ips[nr] [, registers and stack] [, cgroup]
//
// without the period in a session of switches,
//
// and any other record ends in struct sample_id, which sample_id_all adds:
//
//	pid:tid, time, cpu:-, id
const (
	wordSize = 8

	sampleID     = 1
	sampleTID    = 2
	sampleTime   = 3
	sampleCPU    = 4
	samplePeriod = 5
	sampleNr     = 6 // this and what follows: one less without a period
	sampleIPs    = 7

	trailerWords = 4
	trailerTID   = 0
	trailerTime  = 1
	trailerCPU   = 2
	trailerID    = 3
)

// maxRecordWords is the most that a header's 16-bit size can say.
const maxRecordWords = 1 << 16 / wordSize

type header struct {
	kind       uint32
	misc, size uint16
}

func parseHeader(word uint64) header {
	var b [wordSize]byte
	binary.NativeEndian.PutUint64(b[:], word)
	return header{
		kind: binary.NativeEndian.Uint32(b[:]),
		misc: binary.NativeEndian.Uint16(b[4:]),
		size: binary.NativeEndian.Uint16(b[6:]),
	}
}

// words is the record's length, or 0 where the header makes no sense: the
// kernel pads every record to a multiple of 8 bytes.
func (h header) words() int {
	if h.size%wordSize != 0 {
		return 0
	}
	return int(h.size / wordSize)
}

// halves splits a word into the two 32-bit fields it holds, as signed ids.
func halves(word uint64) (first, second int) {
	var b [wordSize]byte
	binary.NativeEndian.PutUint64(b[:], word)
	return int(int32(binary.NativeEndian.Uint32(b[:]))), int(int32(binary.NativeEndian.Uint32(b[4:])))
}

func bytesOf(words []uint64) []byte {
	if len(words) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*wordSize)
}

// untilNUL cuts a padded C string.
func untilNUL(b []byte) []byte {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return b[:i]
	}
	return b
}

type outcome uint8

const (
	decoded outcome = iota
	skipped         // a record that nothing here asks for
	corrupt         // too short for what its header says it is
)

// decoder turns the words of one record into a Record.
type decoder struct {
	// cgroup says that the sample_type has PERF_SAMPLE_CGROUP.
	cgroup bool
	// switches says that it has no PERF_SAMPLE_PERIOD.
	switches bool
	// registers are those that it has, with the user's stack; none where zero.
	registers registerSet
	// maxStack is the depth at which the kernel stops.
	maxStack int
}

// decode fills rec from words, which rec's slices then refer to.
func (d *decoder) decode(words []uint64, rec *Record) outcome {
	if len(words) == 0 {
		return corrupt
	}
	h := parseHeader(words[0])
	if h.words() != len(words) {
		return corrupt
	}
	if h.kind == recordSample {
		return d.sample(h, words, rec)
	}
	if len(words) < 1+trailerWords {
		return corrupt
	}
	body := words[1 : len(words)-trailerWords]
	trailer := words[len(words)-trailerWords:]
	rec.PID, rec.TID = halves(trailer[trailerTID])
	rec.Time = int64(trailer[trailerTime])
	rec.CPU, _ = halves(trailer[trailerCPU])
	rec.ID = trailer[trailerID]
	switch h.kind {
	case recordMmap2:
		return rec.mmap2(h, body)
	case recordComm:
		return rec.comm(h, body)
	case recordFork:
		rec.Type = TypeFork
		return rec.task(body)
	case recordExit:
		rec.Type = TypeExit
		return rec.task(body)
	case recordLost: // {u64 id, lost}
		if len(body) < 2 {
			return corrupt
		}
		rec.Type, rec.Lost = TypeLost, Lost{Count: body[1]}
		return decoded
	case recordLostSamples: // {u64 lost}
		if len(body) < 1 {
			return corrupt
		}
		rec.Type, rec.Lost = TypeLostSamples, Lost{Count: body[0]}
		return decoded
	case recordThrottle: // {u64 time, id, stream_id}
		rec.Type = TypeThrottle
		return decoded
	case recordUnthrottle:
		rec.Type = TypeUnthrottle
		return decoded
	case recordSwitch, recordSwitchCPUWide:
		return rec.switched(h, body)
	case recordCgroup: // {u64 id; char path[]}
		if len(body) < 1 {
			return corrupt
		}
		rec.Type, rec.Cgroup = TypeCgroup, Cgroup{ID: body[0], Path: untilNUL(bytesOf(body[1:]))}
		return decoded
	}
	return skipped
}

func (d *decoder) sample(h header, words []uint64, rec *Record) outcome {
	tail, first := 0, sampleIPs
	if d.cgroup {
		tail = 1
	}
	if d.switches {
		first--
	}
	if len(words) < first+tail || words[first-1] > uint64(len(words)-first-tail) {
		return corrupt
	}
	rec.Type = TypeSample
	rec.ID = words[sampleID]
	rec.PID, rec.TID = halves(words[sampleTID])
	rec.Time = int64(words[sampleTime])
	rec.CPU, _ = halves(words[sampleCPU])
	s := &rec.Sample
	s.Period = 0
	if !d.switches {
		s.Period = int64(words[samplePeriod])
	}
	s.InKernel = h.misc&miscCPUModeMask == miscKernel
	ips := words[first:][:words[first-1]]
	s.Kernel, s.User = split(ips, h.misc)
	s.Truncated = len(s.Kernel)+len(s.User) >= d.maxStack
	s.HasRegisters, s.Registers, s.Stack, s.CgroupID = false, Registers{}, nil, 0
	rest := words[first+len(ips):]
	if d.registers != (registerSet{}) {
		var ok bool
		if rest, ok = d.userStack(rest, s); !ok || len(rest) < tail {
			return corrupt
		}
	}
	if d.cgroup {
		s.CgroupID = rest[0]
	}
	return decoded
}

// split finds the kernel's and the user's part of a callchain. Each is one run
// of addresses after its marker; those of other contexts (a guest, a
// hypervisor) are left out.
func split(ips []uint64, misc uint16) (kernel, user []uint64) {
	context := contextUser
	if misc&miscCPUModeMask == miscKernel {
		context = contextKernel
	}
	for start := 0; start < len(ips); {
		if ips[start] >= contextMax {
			context = ips[start]
			start++
			continue
		}
		end := start + 1
		for end < len(ips) && ips[end] < contextMax {
			end++
		}
		switch {
		case context == contextKernel && kernel == nil:
			kernel = ips[start:end:end]
		case context == contextUser && user == nil:
			user = ips[start:end:end]
		}
		start = end
	}
	return kernel, user
}

// mmap2 reads {u32 pid, tid; u64 addr, len, pgoff; u32 maj, min; u64 ino,
// ino_generation; u32 prot, flags; char filename[]}, where a build id may stand
// in place of maj to ino_generation: {u8 size, reserved; u16 reserved; u8
// build_id[20]}.
func (rec *Record) mmap2(h header, body []uint64) outcome {
	const fixed = 8
	if len(body) < fixed {
		return corrupt
	}
	rec.Type, rec.Mmap = TypeMmap, Mmap{Address: body[1], Length: body[2], Offset: body[3]}
	m := &rec.Mmap
	m.PID, m.TID = halves(body[0])
	if h.misc&miscMmapBuildID != 0 {
		id := bytesOf(body[4:7])
		m.BuildID = id[4:][:min(int(id[0]), 20)]
	} else {
		major, minor := halves(body[4])
		m.DeviceMajor, m.DeviceMinor = uint32(major), uint32(minor)
		m.Inode, m.InodeGeneration = body[5], body[6]
	}
	prot, flags := halves(body[7])
	m.Prot, m.Flags = uint32(prot), uint32(flags)
	m.Filename = untilNUL(bytesOf(body[fixed:]))
	return decoded
}

// comm reads {u32 pid, tid; char comm[]}.
func (rec *Record) comm(h header, body []uint64) outcome {
	if len(body) < 1 {
		return corrupt
	}
	rec.Type = TypeComm
	rec.Comm.PID, rec.Comm.TID = halves(body[0])
	rec.Comm.Name = untilNUL(bytesOf(body[1:]))
	rec.Comm.Exec = h.misc&miscCommExec != 0
	return decoded
}

// task reads {u32 pid, ppid, tid, ptid; u64 time}.
func (rec *Record) task(body []uint64) outcome {
	if len(body) < 3 {
		return corrupt
	}
	t := &rec.Task
	t.PID, t.PPID = halves(body[0])
	t.TID, t.PTID = halves(body[1])
	return decoded
}

// switched reads nothing, or {u32 next_prev_pid, next_prev_tid} of a CPU-wide
// event.
func (rec *Record) switched(h header, body []uint64) outcome {
	rec.Type, rec.Switch = TypeSwitch, Switch{
		Out:       h.misc&miscSwitchOut != 0,
		Preempted: h.misc&miscSwitchOutPreempt != 0,
	}
	if h.kind == recordSwitchCPUWide {
		if len(body) < 1 {
			return corrupt
		}
		rec.Switch.OtherPID, rec.Switch.OtherTID = halves(body[0])
	}
	return decoded
}
