// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/ulikunitz/xz"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/goprogram"
)

// BenchmarkResolve resolves locations whose addresses are already known, from this
// process or from another process with the same file. This is the most common case.
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

// BenchmarkLookup looks up the function, the file, the line and the inlined calls of a
// new address. For comparison, it also measures debug/gosym, which keeps the whole table
// in memory and does not support inlined calls.
func BenchmarkLookup(b *testing.B) {
	path := goCommand(b)
	o, table := openObject(b, path), gosymTable(b, path)
	b.Run("symbolizer", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			o.f.SetBudget(maxLookupBytes)
			if _, err := o.golang.Lines(table.Funcs[i*61%len(table.Funcs)].Entry + 1); err != nil {
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

// BenchmarkOpen opens a large Go program. For comparison, it also measures debug/gosym.
func BenchmarkOpen(b *testing.B) {
	path := goCommand(b)
	b.Run("symbolizer", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f, err := os.Open(path)
			require.NoError(b, err)
			st, err := f.Stat()
			require.NoError(b, err)
			o, err := newObject(f, st.Size())
			require.NoError(b, err)
			require.NoError(b, o.index(DefaultCacheBytes))
			f.Close()
		}
	})
	b.Run("gosym", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			gosymTable(b, path)
		}
	})
}

// nativeLibrary returns the path of the largest file among some common
// native programs and libraries.
func nativeLibrary(b *testing.B) string {
	var largest string
	var size int64
	for _, pattern := range []string{"/usr/bin/node", "/usr/lib/*/libLLVM*.so*", "/usr/lib/*/libstdc++.so.6", "/usr/lib*/libstdc++.so.6", "/usr/lib/*/libc.so.6", "/usr/lib*/libc.so.6"} {
		paths, err := filepath.Glob(pattern)
		require.NoError(b, err)
		for _, path := range paths {
			if st, err := os.Stat(path); err == nil && st.Size() > size {
				largest, size = path, st.Size()
			}
		}
	}
	if largest == "" {
		b.Skip("no library is where libraries usually are")
	}
	b.Logf("%s of %d bytes", largest, size)
	return largest
}

func elfSymbols(b *testing.B, path string) []elf.Symbol {
	f, err := elf.Open(path)
	require.NoError(b, err)
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		require.ErrorIs(b, err, elf.ErrNoSymbols)
	}
	dynamic, err := f.DynamicSymbols()
	if err != nil {
		require.ErrorIs(b, err, elf.ErrNoSymbols)
	}
	return append(symbols, dynamic...)
}

// BenchmarkNativeOpen opens a large native file. For comparison, it also measures
// debug/elf, which reads all names.
func BenchmarkNativeOpen(b *testing.B) {
	path := nativeLibrary(b)
	b.Run("symbolizer", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f, err := os.Open(path)
			require.NoError(b, err)
			st, err := f.Stat()
			require.NoError(b, err)
			o, err := newObject(f, st.Size())
			require.NoError(b, err)
			require.NoError(b, o.index(DefaultCacheBytes))
			b.ReportMetric(float64(memory(o)), "held-B")
			f.Close()
		}
	})
	b.Run("baseline=debug-elf", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			elfSymbols(b, path)
		}
	})
}

// BenchmarkNativeLookup looks up the function of a new address. For comparison, it also
// measures a search in the symbols of debug/elf, and addr2line.
func BenchmarkNativeLookup(b *testing.B) {
	path := nativeLibrary(b)
	symbols := elfSymbols(b, path)
	var functions []elf.Symbol
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Size > 1 && s.Value != 0 {
			functions = append(functions, s)
		}
	}
	pc := func(i int) uint64 { return functions[i*61%len(functions)].Value + 1 }
	b.Run("symbolizer", func(b *testing.B) {
		o := openObject(b, path)
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			o.f.SetBudget(maxLookupBytes)
			if lines, err := o.symbols.lines(pc(i)); err != nil || len(lines) != 1 {
				b.Fatal(lines, err)
			}
			i++
		}
	})
	b.Run("baseline=debug-elf", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			at := pc(i)
			for _, s := range functions {
				if at >= s.Value && at-s.Value < s.Size {
					break
				}
			}
			i++
		}
	})
	b.Run("baseline=addr2line", func(b *testing.B) {
		if _, err := exec.LookPath("addr2line"); err != nil {
			b.Skipf("no addr2line: %v", err)
		}
		const addresses = 1000
		for b.Loop() {
			cmd := exec.Command("addr2line", "-f", "-C", "-e", path)
			var in bytes.Buffer
			for i := range addresses {
				fmt.Fprintf(&in, "%#x\n", pc(i))
			}
			cmd.Stdin = &in
			require.NoError(b, cmd.Run())
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/addresses, "ns/address")
	})
}

// BenchmarkMiniDebugInfo decompresses 4 MiB, which is the size of
// the symbols of a large program.
func BenchmarkMiniDebugInfo(b *testing.B) {
	content, err := os.ReadFile(goCommand(b)) // the kind of content does not matter
	require.NoError(b, err)
	content = content[:4<<20]
	packed := compressed(b, xz.WriterConfig{}, content)
	b.SetBytes(int64(len(content)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := unxz(packed, maxMiniSymbols); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTrack measures the time that the reader of the rings spends on each new mapping.
func BenchmarkTrack(b *testing.B) {
	s, m, _ := benchmarkProgram(b)
	b.ReportAllocs()
	for b.Loop() {
		s.Track(m)
	}
}

// benchmarkProgram returns a symbolizer, a mapping of the test executable, and file
// offsets of functions in the executable.
func benchmarkProgram(b *testing.B) (*Symbolizer, *samples.Mapping, []uint64) {
	exe, err := os.Executable()
	require.NoError(b, err)
	m := mappingOf(b, mappings(b, os.Getpid()), exe)
	o := openObject(b, exe)
	file, err := os.Open(exe)
	require.NoError(b, err)
	defer file.Close()
	var offsets []uint64
	require.NoError(b, goprogram.EachFunction(file, int64(o.f.Size), func(f *goprogram.Function) bool {
		if off, _, ok := o.f.Offset(f.Start); ok {
			offsets = append(offsets, off)
		}
		return len(offsets) < 1000
	}))
	return newSymbolizer(b, Config{}), m, offsets
}
