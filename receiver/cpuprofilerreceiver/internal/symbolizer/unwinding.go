// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"encoding/binary"
	"errors"
	"io"
	"os"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// OpenMapping opens the file behind a mapping without ever following its path
// outside of the process's own root; what it opens is a regular file with the
// mapping's inode.
func OpenMapping(root string, m *samples.Mapping) (*os.File, error) {
	f, _, err := openMapping(root, m)
	return f, err
}

// VDSOPath is the path of the mapping of the vdso.
const VDSOPath = vdsoPath

// VDSO is the object file that the kernel maps into every process.
func VDSO() ([]byte, error) { return vdsoImage() }

// GoFunction is the machine code of one Go function, and how it uses the stack.
type GoFunction struct {
	Name string
	// Start and End are link-time addresses.
	Start, End uint64
	// Depths are in order of address; the first one is at Start.
	Depths []GoDepth
}

// GoDepth says how far the stack pointer is below where it was at the
// function's entry, from an address on.
type GoDepth struct {
	From  uint64
	Depth int32
}

// EachGoFunction calls yield with the functions of a Go program in order of
// address until it returns false. The function given is used again for the
// next. It reports whether the file is a Go program at all.
func EachGoFunction(r io.ReaderAt, size int64, yield func(*GoFunction) bool) (bool, error) {
	f, err := parseELF(&windows{r: r}, size)
	if err != nil {
		return false, err
	}
	_, goBuildID := f.buildIDs()
	t, err := newGoTable(f, goBuildID, size)
	if err != nil || t == nil {
		return false, err
	}
	f.budget = maxIndexBytes
	var g GoFunction
	for i := range t.offsets {
		if t.entries[i] == t.entries[i+1] {
			continue
		}
		if err := t.stackDepths(i, &g); err != nil {
			return true, err
		}
		if !yield(&g) {
			break
		}
	}
	return true, nil
}

// stackDepths fills in g from the description of function i.
func (t *goTable) stackDepths(i int, g *GoFunction) error {
	const fixed = 32
	var buf [fixed]byte
	off := t.functions + uint64(t.offsets[i])
	if off+fixed > t.end || off < t.functions {
		return errors.New("a function's description is outside the pclntab")
	}
	if err := t.f.read(buf[:], off); err != nil {
		return err
	}
	g.Start, g.End = t.text+uint64(t.entries[i]), t.text+uint64(t.entries[i+1])
	g.Depths = g.Depths[:0]
	name, _, err := t.functionName(binary.LittleEndian.Uint32(buf[4:]))
	if err != nil {
		return err
	}
	g.Name = name
	if len(t.functionNames) > 1024 { // they are for those who ask again
		t.forget()
	}
	if table := binary.LittleEndian.Uint32(buf[16:]); table != 0 {
		return t.depths(table, g)
	}
	return nil
}

// depths reads the table of how far the stack pointer is below.
func (t *goTable) depths(table uint32, g *GoFunction) error {
	const most = 1 << 14 // a function of a megabyte has some hundreds
	pc, p := g.Start, t.valuesAt(table)
	for range most {
		depth, size, err := p.next()
		if err != nil || size == 0 {
			return err
		}
		g.Depths = append(g.Depths, GoDepth{From: pc, Depth: depth})
		pc += size
		if pc >= g.End || pc < g.Start {
			return nil
		}
	}
	return nil
}

// windows reads ahead: what is read in small pieces, one near the other, costs
// a system call for each otherwise.
type windows struct {
	r     io.ReaderAt
	cache [64]window
}

type window struct {
	off   int64
	bytes []byte
}

const windowSize = 64 << 10

func (w *windows) ReadAt(p []byte, off int64) (int, error) {
	if len(p) >= windowSize || off < 0 {
		return w.r.ReadAt(p, off)
	}
	done := 0
	for done < len(p) {
		number := (off + int64(done)) / windowSize
		c := &w.cache[number%int64(len(w.cache))]
		if c.bytes == nil || c.off != number*windowSize {
			if c.bytes == nil {
				c.bytes = make([]byte, windowSize)
			}
			n, err := w.r.ReadAt(c.bytes[:windowSize], number*windowSize)
			if n < windowSize && err != io.EOF {
				c.bytes = nil
				return done, err
			}
			c.off, c.bytes = number*windowSize, c.bytes[:n]
		}
		at := off + int64(done) - c.off
		if at >= int64(len(c.bytes)) {
			return done, io.EOF
		}
		done += copy(p[done:], c.bytes[at:])
	}
	return done, nil
}
