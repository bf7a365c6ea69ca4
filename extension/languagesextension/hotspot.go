// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package languagesextension

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"strings"

	ebpfinterpreter "go.opentelemetry.io/ebpf-profiler/interpreter"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/process"
	"go.opentelemetry.io/ebpf-profiler/support"

	"github.com/hotprofile/hotprofile/internal/interpreter"
)

// oldestHotSpot is the oldest supported version of Java.
const oldestHotSpot = 11

func isHotSpot(file string) bool { return path.Base(file) == "libjvm.so" }

// onlyPID is a process that implements only the method PID. The library calls no other
// method.
type onlyPID struct {
	process.Process
	pid libpf.PID
}

func (p onlyPID) PID() libpf.PID { return p.pid }

// hotSpotLayout returns the layout of a JVM.
func hotSpotLayout(l *loaded[support.HotspotProcInfo]) (*interpreter.HotSpot, error) {
	instance, err := l.attach(l.process.Memory, func(instance ebpfinterpreter.Instance) error {
		return instance.SynchronizeMappings(&l.tables, nil, onlyPID{pid: libpf.PID(l.process.PID)}, nil)
	})
	if err != nil {
		return nil, err
	}
	info := l.info
	switch {
	case len(l.heaps) == 0:
		return nil, errors.New("it is not initialized yet")
	case info.Jvm_version < oldestHotSpot:
		return nil, fmt.Errorf("Java %d is not known: %d and later are", info.Jvm_version, oldestHotSpot)
	case info.Segment_shift > 16:
		return nil, errors.New("its code heaps have an unknown layout")
	}
	offset := func(structure, name string) int64 { return int64(l.field(structure, name).Uint()) }
	descriptions := &descriptions{
		memory: l.process.Memory,
		first:  offset("Nmethod", "ScopesPcsOffset"), limit: offset("Nmethod", "DependenciesOffset"),
		size: offset("PcDesc", "Sizeof"), position: offset("PcDesc", "PcOffset"),
	}
	if info.Jvm_version >= 23 {
		descriptions.data, descriptions.limit = offset("Nmethod", "ImmutableData"), offset("Nmethod", "ScopesDataOffset")
	}
	return &interpreter.HotSpot{
		Version: int(info.Jvm_version), Heaps: l.heaps, SegmentShift: uint(info.Segment_shift), HeapBlock: uint64(info.Heapblock_size),
		BlobName: uint64(info.Codeblob_name), BlobCode: uint64(info.Codeblob_codestart),
		BlobComplete: uint64(info.Codeblob_framecomplete), BlobFrame: uint64(info.Codeblob_framesize), CodeOffsets: info.Nmethod_uses_offsets != 0,
		CompileID: uint64(info.Nmethod_compileid), Deoptimize: uint64(info.Nmethod_deopt_offset), OriginalPC: uint64(info.Nmethod_orig_pc_offset),
		MethodConst: uint64(info.Method_constmethod), ConstSize: uint64(info.Cmethod_size), Bytecode: -8,
		Names: func(at interpreter.Code) ([]interpreter.Function, error) {
			if !at.Interpreted {
				at.Position = descriptions.next(at)
			}
			return javaNames(instance, at)
		},
	}, nil
}

// descriptions finds the descriptions (PcDesc) of positions in compiled code. A
// description applies to the instructions before its position, back to the
// position of the previous description. The library, however, uses the last
// description before an instruction.
type descriptions struct {
	memory io.ReaderAt
	// The offsets of the descriptions are relative to a base address. data is the offset of
	// this base address in a blob. If data is 0, the blob itself is the base.
	data int64
	// A blob contains the start and the end of its descriptions as offsets. first and limit
	// are the positions of these two offsets in the blob. size is the size of a description,
	// and position is the offset of the field PcOffset in a description.
	first, limit, size, position int64
}

// next returns the position of the first description at or after the given position. If
// there is no such description, next returns the given position.
func (d *descriptions) next(at interpreter.Code) uint32 {
	const maxSize, maxPosition = 1 << 20, 1<<28 - 1
	var first, limit uint32
	blob, base, found := int64(at.Address), at.Address, int64(maxPosition)
	err := errors.Join(d.read(blob+d.first, &first), d.read(blob+d.limit, &limit))
	if d.data != 0 {
		err = errors.Join(err, d.read(blob+d.data, &base))
	}
	if err != nil || limit < first || limit-first > maxSize || d.position < 0 || d.position > maxSize || d.size < d.position+4 {
		return at.Position
	}
	table := make([]byte, limit-first)
	if d.read(int64(base)+int64(first), table) != nil {
		return at.Position
	}
	for ; int64(len(table)) >= d.size; table = table[d.size:] {
		if position := int64(int32(binary.LittleEndian.Uint32(table[d.position:]))); position >= int64(at.Position) {
			found = min(found, position)
		}
	}
	if found == maxPosition {
		return at.Position
	}
	return uint32(found)
}

// read reads a value from the memory of the process.
func (d *descriptions) read(address int64, value any) error {
	return binary.Read(io.NewSectionReader(d.memory, address, math.MaxInt64), binary.LittleEndian, value)
}

// javaNames returns the functions at a code position of a Java program, including inlined
// functions.
func javaNames(instance ebpfinterpreter.Instance, at interpreter.Code) (functions []interpreter.Function, err error) {
	defer recovered(&err, "reading the names of a Java program")
	const bits = 1<<28 - 1
	kind := uint64(support.FrameHotspotNative)
	if at.Interpreted {
		kind = support.FrameHotspotInterpreter
	}
	frame := libpf.EbpfFrame(libpf.NewEbpfFrame(libpf.HotSpotFrame, 0, 3, 0))
	frame[1] = at.Address
	frame[2] = kind<<60 | (uint64(at.Position)&bits)<<32 | uint64(at.Check)
	var frames libpf.Frames
	if err := instance.Symbolize(frame, &frames, libpf.FrameMapping{}); err != nil {
		return nil, err
	}
	functions = functionsOf(frames)
	for i, f := range functions {
		// The return type is cut from the name.
		if before, after, ok := strings.Cut(f.Name, " "); ok && !strings.Contains(before, "(") {
			functions[i].Name = after
		}
	}
	return functions, nil
}

func functionsOf(frames libpf.Frames) (functions []interpreter.Function) {
	for _, f := range frames {
		v := f.Value()
		functions = append(functions, interpreter.Function{
			Name: v.FunctionName.String(), File: v.SourceFile.String(),
			Line: int64(v.SourceLine), StartLine: max(0, int64(v.SourceLine)-int64(v.FunctionOffset)),
		})
	}
	return functions
}
