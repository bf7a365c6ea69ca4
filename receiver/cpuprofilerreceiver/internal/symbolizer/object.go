// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"debug/elf"
	"fmt"
	"io"
	"time"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// What a map entry or a slice costs beside its content, roughly.
const (
	stringOverhead = 48
	lineSize       = 80
	entryOverhead  = 64
)

// source answers for some of an object file's addresses.
type source interface {
	// lines lists the functions at pc, a link-time address, the innermost
	// inlined one first; none where the source does not know.
	lines(pc uint64) ([]samples.Line, error)
	// frameType is the type of what the source knows.
	frameType() samples.FrameType
	// bytes is the memory held.
	bytes() int64
}

// object is an object file that is open. Only the exporting goroutine calls
// lookup.
type object struct {
	f       *elfFile
	closer  io.Closer
	sources []source
	golang  *goTable
	// separate finds the file with the symbols that this one was stripped of; it
	// returns nil where there is none. It may be nil.
	separate func() *symbolFile
	// debug is that file, nil where it is not held open.
	debug io.Closer

	buildID, goBuildID string

	// known holds the answers given, by link-time address.
	known     map[uint64]answer
	knownSize int64
	maxKnown  int64

	// What follows is the cache's, under its lock.

	size int64 // as counted in the cache's total
	keys map[fileKey]struct{}
	used uint64 // the larger the later
	at   time.Time
}

type answer struct {
	lines []samples.Line
	kind  samples.FrameType
}

// newObject reads the headers; index makes it useful.
func newObject(r io.ReaderAt, size int64, closer io.Closer) (*object, error) {
	f, err := parseELF(r, size)
	if err != nil {
		return nil, err
	}
	o := &object{f: f, closer: closer, known: make(map[uint64]answer), keys: make(map[fileKey]struct{})}
	o.buildID, o.goBuildID = f.buildIDs()
	return o, nil
}

// index reads the tables of the object's sources into at most limit bytes.
// A source that is broken is left out: err says so, and the others still work.
func (o *object) index(limit int64) error {
	o.maxKnown = limit / 4
	golang, err := newGoTable(o.f, o.goBuildID, limit)
	skip := func(uint64) bool { return false }
	if golang != nil {
		o.golang = golang
		o.sources = append(o.sources, golang)
		limit -= golang.bytes()
		skip = golang.contains
	}
	if golang == nil || !o.allGo(golang) {
		symbols, symErr := o.symbols(limit, skip)
		if symErr != nil && err == nil {
			err = symErr
		}
		if symbols != nil {
			o.sources = append(o.sources, symbols)
		}
	}
	return err
}

// symbols reads the ELF symbols, those that were stripped off too where they can
// be found. Where these are broken, or too many, what is left has to do.
func (o *object) symbols(limit int64, skip func(vaddr uint64) bool) (*symbolTable, error) {
	var separate *symbolFile
	var err error
	if o.f.stripped() {
		if o.separate != nil {
			separate = o.separate()
		}
		if separate == nil {
			separate, err = o.f.miniDebugInfo(limit / 2)
		}
	}
	if separate == nil {
		symbols, symErr := newSymbolTable(o.f, nil, limit, skip)
		if symErr != nil {
			err = symErr
		}
		return symbols, err
	}
	symbols, err := newSymbolTable(o.f, separate, limit, skip)
	if err != nil {
		if separate.closer != nil {
			separate.closer.Close()
		}
		symbols, _ = newSymbolTable(o.f, nil, limit, skip)
		return symbols, fmt.Errorf("read symbols that were stripped off: %w", err)
	}
	o.debug = separate.closer
	return symbols, nil
}

// allGo says whether there is no code but Go's, whose ELF symbols need not be
// read: they are many.
func (o *object) allGo(t *goTable) bool {
	for _, s := range o.f.sections {
		if s.flags&elf.SHF_EXECINSTR != 0 && s.size > 0 && s.name != ".plt" && s.name != ".plt.got" &&
			(!t.contains(s.addr) || !t.contains(s.addr+s.size-1)) {
			return false
		}
	}
	return true
}

func (o *object) close() {
	for _, c := range []io.Closer{o.closer, o.debug} {
		if c != nil {
			_ = c.Close() // opened for reading: nothing to lose
		}
	}
}

// descriptors is how many files are held open.
func (o *object) descriptors() int {
	if o.debug != nil {
		return 2
	}
	return 1
}

// bytes is the memory held for indexes and answers.
func (o *object) bytes() int64 {
	n := o.knownSize + entryOverhead
	for _, s := range o.sources {
		n += s.bytes()
	}
	return n
}

// lookup answers for the instruction at a link-time address.
func (o *object) lookup(pc uint64) (answer, error) {
	if a, ok := o.known[pc]; ok {
		return a, nil
	}
	o.f.budget = maxLookupBytes
	a := answer{kind: samples.FrameNative}
	for _, s := range o.sources {
		lines, err := s.lines(pc)
		if err != nil {
			return a, err
		}
		if len(lines) > 0 {
			a = answer{lines: lines, kind: s.frameType()}
			break
		}
	}
	n := int64(entryOverhead)
	for i := range a.lines {
		n += lineSize
		if a.kind != samples.FrameGo { // whose names the table holds
			n += int64(len(a.lines[i].Function) + len(a.lines[i].SystemName))
		}
	}
	held := o.knownSize + n
	if o.golang != nil {
		held += o.golang.held
	}
	if held > o.maxKnown {
		// Starting over costs less than keeping an order of use, and only
		// addresses that no stack holds yet are asked for again.
		clear(o.known)
		o.knownSize = 0
		if o.golang != nil {
			o.golang.forget()
		}
	}
	o.known[pc] = a
	o.knownSize += n
	return a, nil
}
