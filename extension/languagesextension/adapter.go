// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package languagesextension

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"runtime"
	"unsafe"

	"go.opentelemetry.io/ebpf-profiler/host"
	ebpfinterpreter "go.opentelemetry.io/ebpf-profiler/interpreter"
	"go.opentelemetry.io/ebpf-profiler/interpreter/hotspot"
	"go.opentelemetry.io/ebpf-profiler/interpreter/nodev8"
	"go.opentelemetry.io/ebpf-profiler/interpreter/php"
	"go.opentelemetry.io/ebpf-profiler/interpreter/python"
	"go.opentelemetry.io/ebpf-profiler/libc"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
	ebpflog "go.opentelemetry.io/ebpf-profiler/log"
	"go.opentelemetry.io/ebpf-profiler/lpm"
	"go.opentelemetry.io/ebpf-profiler/nativeunwind/stackdeltatypes"
	"go.opentelemetry.io/ebpf-profiler/remotememory"
	"go.opentelemetry.io/ebpf-profiler/support"
	"go.opentelemetry.io/ebpf-profiler/util"

	"github.com/hotprofile/hotprofile/internal/interpreter"
)

func init() {
	// The library's errors contain all necessary facts, so its log is discarded.
	ebpflog.SetLogger(*slog.New(slog.DiscardHandler))
	interpreter.Register(driver{})
}

// driver implements interpreter.Driver.
type driver struct{}

// Knows implements interpreter.Driver. It returns false on architectures other than
// amd64, because the driver cannot find a thread's state there.
func (driver) Knows(path string) bool {
	return runtime.GOARCH == "amd64" && (isPython(path) || isHotSpot(path) || isNode(path) || isPHP(path))
}

// Attach implements interpreter.Driver. It turns a panic into an error, because the
// library does not validate the files and the memory that it reads.
func (driver) Attach(p interpreter.Process) (layout interpreter.Layout, err error) {
	defer recovered(&err, "finding the interpreter")
	for i := range p.Mappings {
		switch path := p.Mappings[i].Path; {
		case isPython(path):
			layout.Python, err = load(p, i, libpf.Python, python.GetLoader(python.Config{}), pythonLayout)
		case isHotSpot(path):
			layout.HotSpot, err = load(p, i, libpf.HotSpot, hotspot.GetLoader(hotspot.Config{}), hotSpotLayout)
		case isNode(path):
			layout.V8, err = load(p, i, libpf.V8, nodev8.GetLoader(nodev8.Config{}), nodeLayout)
		case isPHP(path):
			layout.PHP, err = load(p, i, libpf.PHP, php.GetLoader(php.Config{}), phpLayout)
		}
		if err != nil {
			return layout, fmt.Errorf("reading %s of process %d: %w", p.Mappings[i].Path, p.PID, err)
		}
		if layout != (interpreter.Layout{}) {
			return layout, nil
		}
	}
	return layout, nil
}

// recovered turns a panic into an error.
func recovered(err *error, doing string) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("%s: %v", doing, r)
	}
}

// ThreadContext implements interpreter.Driver. It finds the thread-local variable that
// OTEP 4947 describes.
func (driver) ThreadContext(p interpreter.Process) (descriptor uint64, err error) {
	const variable = "otel_thread_ctx_v1"
	defer recovered(&err, "finding "+variable)
	for i := range p.Mappings {
		o, err := open(p, i)
		if err != nil {
			continue // files that are not object files are mapped too
		}
		if _, err = o.LookupSymbol(variable); err == nil {
			err = o.VisitTLSRelocations(func(r pfelf.ElfReloc, name string) bool {
				if name == variable {
					descriptor = o.bias + r.Off
				}
				return descriptor == 0
			})
		}
		_ = o.Close()
		if descriptor != 0 {
			return descriptor, nil
		}
	}
	return 0, fmt.Errorf("no file of process %d has %s with a TLS descriptor", p.PID, variable)
}

var (
	errNoLayout = errors.New("its layout was not found")
	errNoLoop   = errors.New("the interpreter's loop was not found")
	errNoProgs  = errors.New("the file has no segment for the mapping")
)

// object is an open object file, and its address in the process.
type object struct {
	*pfelf.File
	bias uint64
}

// open opens the file of a mapping.
func open(p interpreter.Process, i int) (*object, error) {
	file, err := p.Open(i)
	if err != nil {
		return nil, err
	}
	ef, err := pfelf.NewFileOwned(file)
	if err != nil {
		return nil, err
	}
	m := p.Mappings[i]
	for j := range ef.Progs {
		if prog := &ef.Progs[j]; m.FileOffset+m.Limit-m.Start > prog.Off && m.FileOffset < prog.Off+prog.Filesz && prog.Flags&elf.PF_X != 0 {
			return &object{File: ef, bias: m.Start - m.FileOffset + prog.Off - prog.Vaddr}, nil
		}
	}
	_ = ef.Close()
	return nil, errNoProgs
}

// noFiles returns an error whenever the library wants to open another file, such as a
// debug file.
type noFiles struct{}

func (noFiles) OpenELF(string) (*pfelf.File, error) {
	return nil, errors.New("no other files are read")
}

// loaded is a file of a process that the library has recognized as an interpreter. T is
// the type of the interpreter's layout.
type loaded[T any] struct {
	*object
	tables
	process interpreter.Process
	mapping interpreter.Mapping
	data    ebpfinterpreter.Data
	// info is the layout. It is nil until attach has found it.
	info *T
}

// load runs a loader of the library on the file of mapping i, and calls describe with the
// result. It returns nil if the loader does not recognize the file as an interpreter.
func load[T, L any](p interpreter.Process, i int, kind libpf.InterpreterType, loader ebpfinterpreter.Loader, describe func(*loaded[T]) (*L, error)) (*L, error) {
	o, err := open(p, i)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	l := &loaded[T]{object: o, process: p, mapping: p.Mappings[i]}
	l.found = func(is libpf.InterpreterType, info unsafe.Pointer) {
		if is == kind {
			found := *(*T)(info)
			l.info = &found
		}
	}
	ref := pfelf.NewReferenceWithOpenFunc(l.mapping.Path, noFiles{}, func() (*pfelf.File, error) { return o.File, nil })
	l.data, err = loader(&l.tables, ebpfinterpreter.NewLoaderInfo(host.FileID(1), ref, functions(o)))
	if err != nil || l.data == nil {
		return nil, err
	}
	return describe(l)
}

// attach finds the layout in the memory of the process. If the parameter then is not nil,
// attach calls this function to complete the layout.
func (l *loaded[T]) attach(m io.ReaderAt, then func(ebpfinterpreter.Instance) error) (ebpfinterpreter.Instance, error) {
	instance, err := l.data.Attach(&l.tables, libpf.PID(l.process.PID), libpf.Address(l.bias), remotememory.RemoteMemory{ReaderAt: m})
	if err == nil && then != nil {
		err = then(instance)
	}
	if err == nil && l.info == nil {
		err = errNoLayout
	}
	return instance, err
}

// loop returns the address ranges of the interpreter's loop in the process.
func (l *loaded[T]) loop() (loop []interpreter.Range, err error) {
	for _, r := range l.ranges {
		loop = append(loop, interpreter.Range{Start: r.Start + l.bias, Limit: r.End + l.bias})
	}
	if len(loop) == 0 {
		err = errNoLoop
	}
	return loop, err
}

// field returns one field of an interpreter's structure, as the library describes it.
func (l *loaded[T]) field(structure, name string) reflect.Value {
	data := reflect.ValueOf(l.data).Elem()
	if once := data.FieldByName("data"); once.IsValid() {
		data = once // the structures of HotSpot are in an xsync.Once
	}
	return data.FieldByName("vmStructs").FieldByName(structure).FieldByName(name)
}

// functions returns the ranges of an object's functions, and of the parts that compilers
// split off from functions. It reads the sorted address table that indexes the unwind
// table.
func functions(o *object) *stackdeltatypes.IntervalData {
	const header, pair, encoding = 12, 8, 0x3b // pairs of 4 bytes, relative to the header
	all := new(stackdeltatypes.IntervalData)
	prog := o.ProgByType(elf.PT_GNU_EH_FRAME)
	if prog == nil {
		return all
	}
	b, err := prog.Data(16 << 20)
	if err != nil || len(b) < header || b[3] != encoding {
		return all
	}
	for b = b[header:]; len(b) >= pair; b = b[pair:] {
		start := prog.Vaddr + uint64(int64(int32(binary.LittleEndian.Uint32(b))))
		if n := len(all.Blocks); n > 0 {
			all.Blocks[n-1].End = start
		}
		all.Blocks = append(all.Blocks, &stackdeltatypes.BasicBlock{Start: start, End: start})
	}
	return all
}

// tables receives the data that the library would write to the tables of its eBPF programs.
type tables struct {
	ranges []util.Range
	// heaps lists the heaps of generated code.
	heaps []interpreter.CodeHeap
	// found is called with the layout of an interpreter.
	found func(libpf.InterpreterType, unsafe.Pointer)
}

// UpdateInterpreterOffsets implements the library's interface EbpfHandler. All methods
// below also belong to this interface.
func (t *tables) UpdateInterpreterOffsets(_ uint16, _ host.FileID, ranges []util.Range) error {
	t.ranges = append(t.ranges, ranges...)
	return nil
}

func (t *tables) UpdateProcData(kind libpf.InterpreterType, _ libpf.PID, info unsafe.Pointer) error {
	t.found(kind, info)
	return nil
}

func (*tables) DeleteProcData(libpf.InterpreterType, libpf.PID) error { return nil }

// UpdatePidInterpreterMapping records a part of a code heap.
func (t *tables) UpdatePidInterpreterMapping(_ libpf.PID, part lpm.Prefix, _ uint8, segments host.FileID, start uint64) error {
	limit := part.Key + 1<<(64-part.Length)
	if n := len(t.heaps); n > 0 && t.heaps[n-1].Start == start {
		t.heaps[n-1].Limit = max(t.heaps[n-1].Limit, limit)
		return nil
	}
	t.heaps = append(t.heaps, interpreter.CodeHeap{
		Range: interpreter.Range{Start: start, Limit: limit}, Segments: uint64(segments) & support.HSTSIDSegMapMask,
	})
	return nil
}

func (*tables) DeletePidInterpreterMapping(libpf.PID, lpm.Prefix) error { return nil }

// threads describes the layout of a C library's threads.
type threads struct {
	libc.LibcInfo
	// id is the offset of a thread's id from the thread pointer.
	id uint64
}

// findThreads reads the layout of thread data from the C library of a process. The C
// library may have a separate file for threads.
func findThreads(p interpreter.Process) (found threads, err error) {
	err = errors.New("the process maps no C library that is known")
	for i := range p.Mappings {
		if !libc.IsPotentialLibcDSO(p.Mappings[i].Path) {
			continue
		}
		o, openErr := open(p, i)
		if openErr != nil {
			err = openErr
			continue
		}
		info, infoErr := libc.ExtractLibcInfo(o.File)
		id, idErr := threadID(o)
		_ = o.Close()
		if infoErr != nil || idErr != nil || !info.HasTSDInfo() {
			continue
		}
		return threads{*info, id}, nil
	}
	return found, err
}

// threadID returns the offset of the thread's ID. For debuggers, glibc publishes the size
// of the ID in bits, the number of elements, and the offset.
func threadID(o *object) (uint64, error) {
	at, err := o.LookupSymbolAddress("_thread_db_pthread_tid")
	if err != nil {
		return 0, err
	}
	var b [12]byte
	if _, err := o.ReadAt(b[:], int64(at)); err != nil {
		return 0, err
	}
	if size := binary.LittleEndian.Uint32(b[:]); size != 32 {
		return 0, fmt.Errorf("a thread's id has %d bits", size)
	}
	return uint64(binary.LittleEndian.Uint32(b[8:])), nil
}
