// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package goprogram

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/elffile"
)

// Function is the code of one function, and how it uses the stack.
type Function struct {
	Name string
	// Start and End are link-time addresses.
	Start, End uint64
	// Depths are by address, the first one at Start.
	Depths []Depth
}

// Depth is the number of bytes by which the stack pointer is below its value at the function's
// entry, from an address on.
type Depth struct {
	From  uint64
	Depth int32
}

// EachFunction calls yield with the functions of a Go program, by address, until it
// returns false. Each call fills the same Function. A file that is not a Go program
// has none.
func EachFunction(r io.ReaderAt, size int64, yield func(*Function) bool) error {
	f, err := elffile.Parse(&blockReader{r: r}, size)
	if err != nil {
		return err
	}
	_, goBuildID := f.BuildIDs()
	t, err := NewTable(f, goBuildID, size)
	if err != nil || t == nil {
		return err
	}
	f.SetBudget(elffile.IndexBudget)
	var g Function
	for i := range t.offsets {
		if t.entries[i] == t.entries[i+1] {
			continue
		}
		if err := t.stackDepths(i, &g); err != nil {
			return err
		}
		if !yield(&g) {
			break
		}
	}
	return nil
}

// stackDepths fills g from the runtime._func of function i.
func (t *Table) stackDepths(i int, g *Function) error {
	const fixed = 32
	var buf [fixed]byte
	off := t.functions + uint64(t.offsets[i])
	if off+fixed > t.end || off < t.functions {
		return errors.New("a function's description is outside the pclntab")
	}
	if err := t.f.Read(buf[:], off); err != nil {
		return err
	}
	g.Start, g.End = t.text+uint64(t.entries[i]), t.text+uint64(t.entries[i+1])
	g.Depths = g.Depths[:0]
	name, _, err := t.functionName(binary.LittleEndian.Uint32(buf[4:]))
	if err != nil {
		return err
	}
	g.Name = name
	if len(t.functionNames) > 1024 { // each name is used once here
		t.Forget()
	}
	if table := binary.LittleEndian.Uint32(buf[16:]); table != 0 {
		return t.depths(table, g)
	}
	return nil
}

// depths reads a function's pcsp table.
func (t *Table) depths(table uint32, g *Function) error {
	const most = 1 << 14 // a function of 1 MB has some hundreds
	pc, p := g.Start, t.valuesAt(table)
	for range most {
		depth, size, err := p.next()
		if err != nil || size == 0 {
			return err
		}
		g.Depths = append(g.Depths, Depth{From: pc, Depth: depth})
		pc += size
		if pc >= g.End || pc < g.Start {
			return nil
		}
	}
	return nil
}
