// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package goprogram reads the runtime's tables from a Go program. The tables describe the
// program's functions, lines and stack use. Stripped programs have these tables too.
package goprogram

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/elffile"
)

// The magic numbers at the start of the pclntab identify its layout. Only the linker and
// runtime/symtab.go of each Go release specify the layouts.
const (
	magicGo118 = 0xfffffff0 // Go 1.18 and 1.19
	magicGo120 = 0xfffffff1 // Go 1.20 and later

	pcHeaderSize = 8 + 8*8
	pointerSize  = 8
	noOffset     = 1<<32 - 1

	pcdataInlTreeIndex = 2
	funcdataInlTree    = 3

	maxGoFunctions = 1 << 24
	maxGoTables    = 1 << 32
	// maxPCData limits the PCDATA tables of a function. Go 1.26 has 5 of these tables.
	maxPCData = 32
	// maxInlineDepth is the maximum number of inlined calls at one address.
	maxInlineDepth = 256
	maxName        = 8 << 10
	maxFileName    = 4 << 10
	// stringOverhead is the approximate size of a map entry for a string, without the bytes
	// of the string.
	stringOverhead = 48
)

var errTooLarge = errors.New("its functions do not fit the symbol cache")

// Table reads the pclntab of a Go program. The pclntab describes the functions with their
// files, lines and inlined calls. To save memory, Table keeps only recently used names
// and an index with 8 bytes per function.
//
// debug/gosym reads the same table, but it loads the whole table into memory, does not
// support inlined calls, and needs a symbol for the address of the text.
type Table struct {
	f *elffile.File
	// err is the first error since the last call of failed.
	err error
	// text is the base of the addresses in the table.
	text    uint64
	version int // 118 or 120
	quantum uint64

	entries []uint32 // addresses of the functions, and the end of the last function
	offsets []uint32 // offsets of the functions' runtime._func, relative to functions

	// These fields are file offsets. end is the end of the pclntab.
	names, units, files, values, functions, end uint64
	// funcdata is the file offset of the funcdata, which describes inlined
	// calls. It is 0 if the funcdata was not found. dataEnd is the end of the
	// segment that contains the funcdata.
	funcdata, dataEnd uint64

	// functionNames and fileNames cache names by offset, because most addresses share
	// names. held is the memory of the caches in bytes.
	functionNames map[uint32]shownName
	fileNames     map[uint32]string
	held          int64

	// scratch and reader are reused to avoid allocations. scratch is a buffer for small
	// reads, and reader reads a table of values.
	scratch [maxFuncSize]byte
	reader  valueReader
}

// maxFuncSize is the maximum number of bytes that are read from a runtime._func.
const maxFuncSize = 44 + 4*(maxPCData+funcdataInlTree+1)

type shownName struct{ function, system string }

// pcHeader is runtime.pcHeader, the start of a pclntab. Its
// offsets are relative to its start.
type pcHeader struct {
	version                                     int
	quantum                                     uint64
	functions                                   uint64
	text                                        uint64
	names, units, files, values, functionsTable uint64
}

func parsePCHeader(b []byte, size uint64) (pcHeader, error) {
	var h pcHeader
	if len(b) < pcHeaderSize {
		return h, errors.New("too short for a pclntab")
	}
	le := binary.LittleEndian
	switch le.Uint32(b) {
	case magicGo118:
		h.version = 118
	case magicGo120:
		h.version = 120
	default:
		return h, fmt.Errorf("pclntab magic %#x is not of Go 1.18 or later", le.Uint32(b))
	}
	h.quantum = uint64(b[6])
	if b[4] != 0 || b[5] != 0 || (h.quantum != 1 && h.quantum != 2 && h.quantum != 4) || b[7] != pointerSize {
		return h, errors.New("not a pclntab of a 64-bit machine")
	}
	word := func(i int) uint64 { return le.Uint64(b[8+8*i:]) }
	h.functions, h.text = word(0), word(2)
	h.names, h.units, h.files, h.values, h.functionsTable = word(3), word(4), word(5), word(6), word(7)
	last := uint64(pcHeaderSize)
	for _, off := range []uint64{h.names, h.units, h.files, h.values, h.functionsTable} {
		if off < last || off >= size {
			return h, errors.New("the parts of the pclntab are not in order")
		}
		last = off
	}
	if h.functions == 0 || h.functions > maxGoFunctions || (h.functions*2+1)*4 > size-h.functionsTable {
		return h, fmt.Errorf("%d functions do not fit the pclntab", h.functions)
	}
	return h, nil
}

// NewTable finds the pclntab of a file and builds an index of at most limit bytes. It
// returns nil if the file has no pclntab.
func NewTable(f *elffile.File, goBuildID string, limit int64) (*Table, error) {
	addr, size, h, err := findPCLNTab(f, goBuildID != "")
	if err != nil || size == 0 {
		return nil, err
	}
	if int64(h.functions)*8 > limit {
		return nil, errTooLarge
	}
	off, avail, ok := f.Offset(addr)
	if !ok {
		return nil, errors.New("the pclntab is in no segment")
	}
	size = min(size, avail)
	t := &Table{
		f: f, version: h.version, quantum: h.quantum, end: off + size,
		names: off + h.names, units: off + h.units, files: off + h.files, values: off + h.values, functions: off + h.functionsTable,
		functionNames: make(map[uint32]shownName), fileNames: make(map[uint32]string),
	}
	if err := t.readEntries(int(h.functions)); err != nil {
		return nil, err
	}
	m, found := findModule(f, addr, h, t.entries[0], t.entries[h.functions])
	switch {
	case found:
		t.text = m.text
	case h.text != 0:
		t.text = h.text
	default:
		text, ok := f.Section(".text")
		if !ok {
			return nil, errors.New("no moduledata that says where the program's text starts")
		}
		t.text = text.Address
	}
	if !f.Executable(t.text + uint64(t.entries[0])) {
		return nil, fmt.Errorf("the first function, at %#x, is not in executable memory", t.text+uint64(t.entries[0]))
	}
	for _, addr := range m.gofunc {
		if off, avail, ok := f.Offset(addr); ok {
			t.funcdata, t.dataEnd = off, off+avail
			if t.inliningPlausible() {
				return t, nil
			}
		}
	}
	t.funcdata, t.dataEnd = 0, 0
	return t, nil
}

// readEntries reads the function table, which is sorted by address.
func (t *Table) readEntries(n int) error {
	t.entries, t.offsets = make([]uint32, n+1), make([]uint32, n)
	le := binary.LittleEndian
	const entrySize = 8
	i := 0
	t.err = t.f.EachEntry(t.functions, uint64(n)*entrySize, entrySize, func(b []byte) bool {
		t.entries[i], t.offsets[i] = le.Uint32(b), le.Uint32(b[4:])
		i++
		return true
	})
	var last [4]byte // the last entry has only an address
	t.read(last[:], t.functions+uint64(n)*entrySize)
	t.entries[n] = le.Uint32(last[:])
	if err := t.failed(); err != nil {
		return fmt.Errorf("reading the pclntab: %w", err)
	}
	if !slices.IsSorted(t.entries) {
		return errors.New("the functions of the pclntab are not in order")
	}
	return nil
}

// read fills b from a file offset. If there was an error, read has no effect. The caller
// calls failed before it uses data that depends on b.
func (t *Table) read(b []byte, off uint64) {
	if t.err == nil {
		t.err = t.f.Read(b, off)
	}
}

// fail sets err, unless there was an earlier error.
func (t *Table) fail(text string) {
	if t.err == nil {
		t.err = errors.New(text)
	}
}

// failed returns the first error since the last call of failed.
func (t *Table) failed() error {
	err := t.err
	t.err = nil
	return err
}

// Contains reports whether pc, a link-time address, is in the table's text.
func (t *Table) Contains(pc uint64) bool {
	return pc >= t.text+uint64(t.entries[0]) && pc < t.text+uint64(t.entries[len(t.entries)-1])
}

// Bytes returns the memory that the table uses, including cached names.
func (t *Table) Bytes() int64 { return int64(len(t.entries)+len(t.offsets))*4 + t.held }

// Names returns the memory of the cached names.
func (t *Table) Names() int64 { return t.held }

// funcInfo holds the needed fields and table offsets of a runtime._func.
type funcInfo struct {
	entry uint64 // relative to text
	size  uint64
	name  uint32
	// file and line are offsets of tables in values. 0 means no table.
	file, line uint32
	unit       uint32
	startLine  int32
	// inline is the offset in funcdata of the function's tree of inlined calls. inlines is
	// the offset in values of the table of indexes into this tree.
	inline, inlines uint32
}

// description reads up to most bytes of the runtime._func of function i. The result has at
// least least bytes, and is valid until the next read.
func (t *Table) description(i int, least, most uint64) []byte {
	off := t.functions + uint64(t.offsets[i])
	if off+least > t.end || off < t.functions {
		t.fail("a function's description is outside the pclntab")
		return t.scratch[:most]
	}
	b := t.scratch[:min(most, t.end-off)]
	t.read(b, off)
	return b
}

func (t *Table) function(i int) funcInfo {
	fixed := uint64(44)
	if t.version < 120 {
		fixed = 40
	}
	b := t.description(i, fixed, uint64(len(t.scratch)))
	le := binary.LittleEndian
	f := funcInfo{
		entry: uint64(le.Uint32(b)), name: le.Uint32(b[4:]),
		file: le.Uint32(b[20:]), line: le.Uint32(b[24:]),
		unit: le.Uint32(b[32:]), inline: noOffset,
	}
	f.size = uint64(t.entries[i+1]) - f.entry
	pcdata := le.Uint32(b[28:])
	if t.version >= 120 {
		f.startLine = int32(le.Uint32(b[36:]))
	}
	if f.entry != uint64(t.entries[i]) || pcdata > maxPCData {
		t.fail("a function's description does not match the index")
		return f
	}
	variable := b[fixed:] // first the offsets of pcdata, then the offsets of funcdata
	funcdata := 4 * (pcdata + funcdataInlTree)
	if pcdata > pcdataInlTreeIndex && b[fixed-1] > funcdataInlTree && uint64(funcdata)+4 <= uint64(len(variable)) {
		f.inlines, f.inline = le.Uint32(variable[4*pcdataInlTreeIndex:]), le.Uint32(variable[funcdata:])
	}
	return f
}

// inlinedCall is runtime.inlinedCall.
type inlinedCall struct {
	name      uint32
	parentPC  uint32
	startLine int32
}

// inlinedCall reads one call from the tree of inlined calls of f. It returns false if the
// call is outside the file, cannot be read or does not belong to f.
func (t *Table) inlinedCall(f *funcInfo, index int32) (call inlinedCall, ok bool) {
	size := uint64(16)
	if t.version < 120 {
		size = 20
	}
	off := t.funcdata + uint64(f.inline) + uint64(index)*size
	if off+size > t.dataEnd {
		return call, false
	}
	b := t.scratch[:size]
	t.read(b, off)
	le := binary.LittleEndian
	if t.version < 120 {
		call = inlinedCall{name: le.Uint32(b[12:]), parentPC: le.Uint32(b[16:])}
	} else {
		call = inlinedCall{name: le.Uint32(b[4:]), parentPC: le.Uint32(b[8:]), startLine: int32(le.Uint32(b[12:]))}
	}
	return call, t.err == nil && uint64(call.parentPC) <= f.size
}

// inliningPlausible reports whether the first inlined calls are valid. Invalid calls show
// that moduledata has an unknown layout.
func (t *Table) inliningPlausible() bool {
	const enough, most = 32, 4096
	seen := 0
	for i := 0; i < min(len(t.offsets), most) && seen < enough; i++ {
		f := t.function(i)
		if f.inline == noOffset && t.err == nil {
			continue
		}
		if call, ok := t.inlinedCall(&f, 0); !ok || !t.startsName(&call) {
			t.err = nil
			return false
		}
		seen++
	}
	return true
}

// startsName reports whether call.name is the offset of a name in the name table, in
// which each name ends with a zero byte. Zeroed data looks like a call of the name at
// offset 0. For this reason, a call with offset 0 must also have a start line.
func (t *Table) startsName(call *inlinedCall) bool {
	if call.name == 0 {
		return call.startLine > 0
	}
	var before [1]byte
	return t.names+uint64(call.name) < t.units &&
		t.f.Read(before[:], t.names+uint64(call.name)-1) == nil && before[0] == 0
}

// Lines returns the functions at pc, a link-time address. The innermost inlined function
// comes first. The result is empty if pc is not in the table's text.
func (t *Table) Lines(pc uint64) ([]samples.Line, error) {
	if !t.Contains(pc) {
		return nil, nil
	}
	rel := uint32(pc - t.text)
	after := sort.Search(len(t.offsets), func(i int) bool { return t.entries[i] > rel })
	f := t.function(after - 1)
	at := uint64(rel)
	var out []samples.Line
	if t.funcdata != 0 && f.inline != noOffset && f.inlines != 0 {
		for range maxInlineDepth {
			index := t.value(&f, f.inlines, at)
			if index < 0 {
				break
			}
			call, ok := t.inlinedCall(&f, index)
			if !ok {
				break
			}
			out = append(out, t.line(&f, call.name, call.startLine, at))
			at = f.entry + uint64(call.parentPC)
		}
	}
	out = append(out, t.line(&f, f.name, f.startLine, at))
	if err := t.failed(); err != nil {
		return nil, err
	}
	return out, nil
}

func (t *Table) line(f *funcInfo, name uint32, startLine int32, at uint64) samples.Line {
	out := samples.Line{StartLine: int64(max(startLine, 0))}
	out.Function, out.SystemName = t.functionName(name)
	out.Line = int64(max(t.value(f, f.line, at), 0))
	n := t.value(f, f.file, at)
	unit := t.units + (uint64(f.unit)+uint64(n))*4
	if n < 0 || unit+4 > t.files {
		return out
	}
	b := t.scratch[:4]
	t.read(b, unit)
	if off := binary.LittleEndian.Uint32(b); off != noOffset {
		out.File = t.fileName(off)
	}
	return out
}

// cstring returns the string at a file offset, which is in the part of the table up to end.
func (t *Table) cstring(off, end uint64, limit int) string {
	if t.err != nil {
		return ""
	}
	var text string
	text, t.err = t.f.CString(off, end, limit)
	return strings.ToValidUTF8(text, "?")
}

// functionName returns the name at an offset in the name table as the runtime prints it.
// If the linker's name is different, functionName returns the linker's name as system. In
// place of type arguments, the linker writes their shapes and the runtime prints [...].
func (t *Table) functionName(off uint32) (function, system string) {
	if n, ok := t.functionNames[off]; ok {
		return n.function, n.system
	}
	n := shownName{function: t.cstring(t.names+uint64(off), t.units, maxName)}
	if t.err != nil {
		return "", ""
	}
	if open, end := strings.IndexByte(n.function, '['), strings.LastIndexByte(n.function, ']'); open >= 0 && open < end {
		n.system = n.function
		n.function = n.system[:open] + "[...]" + n.system[end+1:]
		if n.function == n.system {
			n.system = ""
		}
	}
	t.functionNames[off] = n
	t.held += int64(len(n.function)+len(n.system)) + 2*stringOverhead
	return n.function, n.system
}

// fileName returns the name at an offset in the file table.
func (t *Table) fileName(off uint32) string {
	if name, ok := t.fileNames[off]; ok {
		return name
	}
	name := t.cstring(t.files+uint64(off), t.values, maxFileName)
	if t.err == nil {
		t.fileNames[off] = name
		t.held += int64(len(name)) + stringOverhead
	}
	return name
}

// Forget clears the caches of names.
func (t *Table) Forget() {
	clear(t.functionNames)
	clear(t.fileNames)
	t.held = 0
}

// value returns the value at an address in one of f's tables, like runtime.pcvalue. It
// returns -1 if the table has no value for the address, or if the file cannot be read.
func (t *Table) value(f *funcInfo, table uint32, at uint64) int32 {
	if table == 0 {
		return -1
	}
	pc, p := f.entry, t.valuesAt(table)
	for {
		value, size := p.next()
		pc += size
		switch {
		case size == 0:
			return -1
		case at < pc:
			return value
		case pc < f.entry || pc > f.entry+f.size:
			return -1
		}
	}
}

// valueReader reads a table of values by address, like runtime.step. The table
// is a list of pairs of varints. The first varint is the zigzag-encoded
// difference from the previous value. The second varint is the length of the
// value's code in units of quantum.
type valueReader struct {
	t     *Table
	off   uint64 // file offset of the bytes after rest
	rest  []byte
	began bool
	value int32
	buf   [256]byte
}

// valuesAt returns the shared reader, positioned at the start of a table of values.
func (t *Table) valuesAt(table uint32) *valueReader {
	p := &t.reader
	p.t, p.off, p.rest, p.began, p.value = t, t.values+uint64(table), nil, false, -1
	return p
}

// next returns the next value and the size of its code in bytes. The size is 0 at the end
// of the table, or if the table is corrupt or cannot be read.
func (p *valueReader) next() (value int32, size uint64) {
	// A pair takes at most 10 bytes.
	if end := p.t.functions; len(p.rest) < 2*binary.MaxVarintLen32 && p.off < end {
		n := copy(p.buf[:], p.rest)
		more := min(uint64(len(p.buf)-n), end-p.off)
		p.t.read(p.buf[n:n+int(more)], p.off)
		p.off += more
		p.rest = p.buf[:n+int(more)]
	}
	v, n := binary.Uvarint(p.rest)
	if p.t.err != nil || n <= 0 || v == 0 && p.began {
		return 0, 0
	}
	d, m := binary.Uvarint(p.rest[n:])
	if m <= 0 {
		return 0, 0
	}
	p.rest, p.began = p.rest[n+m:], true
	p.value += int32(uint32(v)>>1) ^ -int32(v&1)
	return p.value, d * p.t.quantum
}

// findPCLNTab finds the pclntab by its section. If there is no such section and the file
// may be a Go program, it searches the segments for the header.
func findPCLNTab(f *elffile.File, isGo bool) (addr, size uint64, h pcHeader, err error) {
	var buf [pcHeaderSize]byte
	for _, s := range f.Sections {
		if !strings.HasSuffix(s.Name, ".gopclntab") || s.Kind == elf.SHT_NOBITS || s.Address == 0 {
			continue
		}
		if err := f.Read(buf[:], s.Offset); err != nil {
			return 0, 0, h, fmt.Errorf("reading the pclntab: %w", err)
		}
		if h, err = parsePCHeader(buf[:], min(s.Size, maxGoTables)); err != nil {
			return 0, 0, h, err
		}
		return s.Address, s.Size, h, nil
	}
	if _, ok := f.Section(".go.buildinfo"); len(f.Sections) > 0 && !ok && !isGo {
		return 0, 0, h, nil
	}
	for _, s := range f.Segments {
		if s.Kind != elf.PT_LOAD || s.Offset > f.Size {
			continue
		}
		if off, h, ok := scanPCLNTab(f, s); ok {
			return s.Address + off, min(s.Size-off, maxGoTables), h, nil
		}
	}
	return 0, 0, h, nil
}

// scanPCLNTab searches a segment for the header of a pclntab. The header is aligned to at
// least the size of a pointer.
func scanPCLNTab(f *elffile.File, s elffile.Segment) (at uint64, h pcHeader, ok bool) {
	size := min(s.Size, f.Size-s.Offset, maxGoTables)
	// If the segment cannot be read, the rest is not searched.
	_ = f.Scan(s.Offset, size, pcHeaderSize, func(b []byte, off uint64) bool {
		for i := 0; i+pcHeaderSize <= len(b) && i < elffile.ChunkSize; i += pointerSize {
			if b[i+1] != 0xff || b[i+2] != 0xff || b[i+3] != 0xff || b[i]|1 != 0xf1 {
				continue
			}
			begin := off - s.Offset + uint64(i)
			if header, err := parsePCHeader(b[i:], size-begin); err == nil {
				at, h, ok = begin, header, true
				return false
			}
		}
		return true
	})
	return at, h, ok
}
