// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package goprogram

import (
	"bytes"
	"encoding/binary"
	"io"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/elffile"
)

// Function is the code of one function and its use of the stack.
type Function struct {
	// Name is empty unless the function belongs to the runtime.
	Name string
	// Start and End are link-time addresses.
	Start, End uint64
	// Depths is sorted by address. The first depth is at Start.
	Depths []Depth
}

// Depth is the number of bytes by which the stack pointer is below its value at the
// function's entry. It is valid from the address From up to the next depth.
type Depth struct {
	From  uint64
	Depth int32
}

// EachFunction calls yield for each function of a Go program in the order of
// addresses, until yield returns false. All calls reuse the same Function. If the file
// is not a Go program, yield is not called.
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
		if t.stackDepths(i, &g); t.err != nil || !yield(&g) {
			break
		}
	}
	return t.err
}

// stackDepths fills g with the data of function i.
func (t *Table) stackDepths(i int, g *Function) {
	const fixed = 32
	buf := t.description(i, fixed, fixed)
	name, table := binary.LittleEndian.Uint32(buf[4:]), binary.LittleEndian.Uint32(buf[16:])
	g.Start, g.End = t.text+uint64(t.entries[i]), t.text+uint64(t.entries[i+1])
	g.Depths = g.Depths[:0]
	g.Name = t.runtimeName(name)
	if table != 0 {
		t.depths(table, g)
	}
}

// runtimeName returns the name at an offset in the name table if the function belongs to
// the runtime. Otherwise it returns "", because a program has tens of thousands of names.
func (t *Table) runtimeName(off uint32) string {
	if t.names+uint64(off) >= t.units {
		return ""
	}
	name := t.shortName(t.scratch[:0], off)
	if !bytes.HasPrefix(name, []byte("runtime.")) && !bytes.HasPrefix(name, []byte("_rt0_")) {
		return ""
	}
	return string(name)
}

// depths reads a function's pcsp table.
func (t *Table) depths(table uint32, g *Function) {
	const most = 1 << 14 // a function of 1 MB has a few hundred depths
	pc, p := g.Start, t.valuesAt(table)
	for range most {
		depth, size := p.next()
		if size == 0 {
			return
		}
		g.Depths = append(g.Depths, Depth{From: pc, Depth: depth})
		pc += size
		if pc >= g.End || pc < g.Start {
			return
		}
	}
}
