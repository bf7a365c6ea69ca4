// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/samples"
)

// BenchmarkResolve is a location whose address was asked for before, in this or
// another process of the image: the common case once a program runs.
func BenchmarkResolve(b *testing.B) {
	s, m, pcs := benchmarkProgram(b)
	locations := make([]samples.Location, len(pcs))
	resolveAll := func() {
		for i, pc := range pcs {
			locations[i] = samples.Location{Mapping: m, Address: m.Start - m.FileOffset + pc, Leaf: true}
			s.Resolve(0, &locations[i])
		}
	}
	resolveAll()
	for _, l := range locations {
		require.NotEmpty(b, l.Lines)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		l := &locations[i%len(locations)]
		l.Resolved = false
		s.Resolve(0, l)
		i++
	}
}

// BenchmarkLookup is an address that was not asked for before, with function,
// file, line and inlined calls, beside what debug/gosym takes for function,
// file and line with the whole table in memory.
func BenchmarkLookup(b *testing.B) {
	path := goCommand(b)
	o, table := openObject(b, path), gosymTable(b, path)
	b.Run("symbolizer", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			o.f.budget = maxLookupBytes
			if _, err := o.golang.lines(table.Funcs[i*61%len(table.Funcs)].Entry + 1); err != nil {
				b.Fatal(err)
			}
			i++
		}
	})
	b.Run("gosym", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			table.PCToLine(table.Funcs[i*61%len(table.Funcs)].Entry + 1)
			i++
		}
	})
}

// BenchmarkOpen is the first sight of a large Go program, beside debug/gosym.
func BenchmarkOpen(b *testing.B) {
	path := goCommand(b)
	b.Run("symbolizer", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f, err := os.Open(path)
			require.NoError(b, err)
			st, err := f.Stat()
			require.NoError(b, err)
			o, err := newObject(f, st.Size(), f)
			require.NoError(b, err)
			require.NoError(b, o.index(DefaultCacheBytes))
			o.close()
		}
	})
	b.Run("gosym", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			gosymTable(b, path)
		}
	})
}

// BenchmarkTrack is what a new mapping costs the reader of the rings.
func BenchmarkTrack(b *testing.B) {
	s, m, _ := benchmarkProgram(b)
	b.ReportAllocs()
	for b.Loop() {
		s.Track(m)
	}
}

// benchmarkProgram is this test program as a process that is symbolized, and
// where functions are in its file.
func benchmarkProgram(b *testing.B) (*Symbolizer, *samples.Mapping, []uint64) {
	exe, err := os.Executable()
	require.NoError(b, err)
	m := mappingOf(b, mappings(b, os.Getpid()), exe)
	o := openObject(b, exe)
	var pcs []uint64
	for _, entry := range o.golang.entries {
		off, _, ok := o.f.fileOffset(o.golang.text + uint64(entry))
		if ok && len(pcs) < 1000 {
			pcs = append(pcs, off)
		}
	}
	return newSymbolizer(b, Config{}), m, pcs
}
