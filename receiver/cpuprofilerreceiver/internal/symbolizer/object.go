// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package symbolizer

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/elffile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/goprogram"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/stuckread"
)

// lineSize and entryOverhead estimate the memory of a line and of a map entry without their
// strings. sectionSize estimates the memory of a section header with its name.
const (
	lineSize      = 80
	entryOverhead = 64
	sectionSize   = 96
)

// maxLookupBytes is the maximum number of bytes that are read for one address. The longest
// tables of Go functions have about 100 KiB, and belong to functions of generated parsers.
const maxLookupBytes = 4 << 20

var errTooLarge = errors.New("its symbols do not fit the symbol cache")

// object is an open object file. Only Resolve calls lookup.
type object struct {
	f *elffile.File
	// golang and symbols find the functions. They are nil if the file has none.
	golang  *goprogram.Table
	symbols *symbolTable
	// separate is the open debug file with the stripped symbols, or nil.
	separate *symbolFile
	// files holds the readers of the object file and of its debug file. It is empty if the
	// object is in memory.
	files []*mappedfile.Reader

	buildID, goBuildID string

	// known caches answers by link-time address.
	known     map[uint64]answer
	knownSize int64
	maxKnown  int64

	// The Symbolizer's lock guards the fields below.

	cached
	image image
	keys  map[mappedfile.File]struct{}
	// hot is the last batch with samples of a hot unit in the object, or 0.
	hot uint64
}

type answer struct {
	lines []samples.Line
	kind  samples.FrameType
}

// bytes returns the memory that the lines use, in bytes.
func (a answer) bytes() (n int64) {
	for i := range a.lines {
		l := &a.lines[i]
		n += lineSize + int64(len(l.Function)+len(l.SystemName)+len(l.File))
	}
	return n
}

// newObject returns an object from the headers of its file. The symbols are read later, by
// index.
func newObject(r io.ReaderAt, size int64) (*object, error) {
	f, err := elffile.Parse(r, size)
	if err != nil {
		return nil, err
	}
	o := &object{f: f, known: make(map[uint64]answer), keys: make(map[mappedfile.File]struct{})}
	o.buildID, o.goBuildID = f.BuildIDs()
	return o, nil
}

// index reads the object's symbols into at most limit bytes. If a source is corrupt, index
// skips it and returns the error. The other source still works.
func (o *object) index(limit int64) error {
	o.maxKnown = limit / 4
	golang, err := goprogram.NewTable(o.f, o.goBuildID, limit)
	skip := func(uint64) bool { return false }
	if golang != nil {
		if o.golang = golang; o.allGo(golang) {
			o.closeSeparate() // Go's table has all names
			return err
		}
		limit -= golang.Bytes()
		skip = golang.Contains
	}
	symbols, symErr := o.readSymbols(limit, skip)
	o.symbols = symbols
	return cmp.Or(err, symErr)
}

// readSymbols reads the ELF symbols of the file. It also reads the symbols in the separate
// debug file. If there is no such file and the file is stripped, it reads the symbols in
// .gnu_debugdata instead. If these additional symbols are corrupt or too many,
// readSymbols returns the file's own symbols and an error.
func (o *object) readSymbols(limit int64, skip func(vaddr uint64) bool) (*symbolTable, error) {
	separate := o.separate
	var miniErr error
	if separate == nil && isStripped(o.f) {
		separate, miniErr = miniDebugInfo(o.f, limit/2)
	}
	symbols, err := newSymbolTable(o.f, separate, limit, skip)
	if err != nil && separate != nil {
		o.closeSeparate()
		symbols, _ = newSymbolTable(o.f, nil, limit, skip)
		err = fmt.Errorf("reading stripped symbols: %w", err)
	}
	return symbols, cmp.Or(err, miniErr)
}

// allGo reports whether all code is Go code. In that case,
// the ELF symbols are not needed.
func (o *object) allGo(t *goprogram.Table) bool {
	for _, s := range o.f.Sections {
		if s.Flags&elf.SHF_EXECINSTR != 0 && s.Size > 0 && !isLinkage(s) &&
			(!t.Contains(s.Address) || !t.Contains(s.Address+s.Size-1)) {
			return false
		}
	}
	return true
}

// isLinkage reports whether a section is a procedure linkage table. The code in such a
// table jumps to functions of other files and has no symbols.
func isLinkage(s elffile.Section) bool { return s.Name == ".plt" || strings.HasPrefix(s.Name, ".plt.") }

// inLinkage reports whether a link-time address is in a procedure linkage table.
func (o *object) inLinkage(pc uint64) bool {
	return slices.ContainsFunc(o.f.Sections, func(s elffile.Section) bool {
		return isLinkage(s) && pc >= s.Address && pc-s.Address < s.Size
	})
}

func (o *object) close() {
	for _, r := range o.files {
		_ = r.Close() // the file was only read, so no data can be lost
	}
}

// use sets the stuckread.Call to which the next reads of the object's files belong.
func (o *object) use(c *stuckread.Call) {
	for _, r := range o.files {
		r.Use(c)
	}
}

// stuck reports whether a read timed out and is still running. The object must not be used
// until the read has ended.
func (o *object) stuck() bool { return slices.ContainsFunc(o.files, (*mappedfile.Reader).Stuck) }

func (o *object) closeSeparate() {
	if o.separate != nil {
		_ = o.separate.file.Close() // the file was only read, so no data can be lost
		o.separate, o.files = nil, o.files[:1]
	}
}

// uses returns the memory of the object's indexes and cached answers, and the number of its
// file descriptors.
func (o *object) uses() (bytes int64, descriptors int) {
	bytes = o.knownSize + entryOverhead + int64(len(o.f.Sections))*sectionSize
	if o.golang != nil {
		bytes += o.golang.Bytes()
	}
	if o.symbols != nil {
		bytes += o.symbols.bytes()
	}
	return bytes, len(o.files)
}

// lookup returns the functions at pc, a link-time address that is not in known yet. made is
// the memory of the new names.
func (o *object) lookup(pc uint64) (a answer, made int64, err error) {
	o.f.SetBudget(maxLookupBytes)
	shared, held := int64(0), int64(0) // the names of Go's table before and after
	if o.golang != nil {
		shared = o.golang.Names()
		a.lines, err = o.golang.Lines(pc)
		held = o.golang.Names()
	}
	n := entryOverhead + lineSize*int64(len(a.lines))
	if a.kind = samples.FrameGo; len(a.lines) == 0 {
		a.kind = samples.FrameNative
		if err == nil && o.symbols != nil {
			a.lines, err = o.symbols.lines(pc)
		}
		if len(a.lines) == 0 && o.inLinkage(pc) {
			a.lines = []samples.Line{{Function: "[plt]"}}
		}
		n = entryOverhead + a.bytes()
	}
	if err != nil {
		return answer{kind: samples.FrameNative}, 0, err
	}
	made = n + held - shared
	if o.knownSize+n+held > o.maxKnown {
		// Clearing the whole cache costs less than tracking which addresses were used last.
		// Addresses that already have a name in a stack are not looked up again.
		clear(o.known)
		o.knownSize = 0
		if o.golang != nil {
			o.golang.Forget()
		}
	}
	o.known[pc] = a
	o.knownSize += n
	return a, made, nil
}
