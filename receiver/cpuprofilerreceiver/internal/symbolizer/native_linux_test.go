// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"bufio"
	"debug/elf"
	"debug/gosym"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// nm runs the tool nm on a file. It returns the names of the listed functions by address.
func nm(t testing.TB, path string, flags ...string) map[uint64][]string {
	t.Helper()
	out, err := exec.Command("nm", append(flags, path)...).Output()
	require.NoError(t, err)
	names := make(map[uint64][]string)
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 3 && strings.ContainsAny(f[1], "tTwWi") {
			addr, err := strconv.ParseUint(f[0], 16, 64)
			require.NoError(t, err)
			name, _, _ := strings.Cut(f[2], "@")
			names[addr] = append(names[addr], name)
		}
	}
	return names
}

// addressOf returns the address of a function in the process that has the mapping m. path
// is the path of the function's file.
func addressOf(t testing.TB, path string, m *samples.Mapping, function string, flags ...string) uint64 {
	t.Helper()
	f, err := elf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	for addr, names := range nm(t, path, flags...) {
		for _, name := range names {
			if name != function {
				continue
			}
			for _, p := range f.Progs {
				if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && addr >= p.Vaddr && addr < p.Vaddr+p.Filesz {
					return addr - p.Vaddr + p.Off - m.FileOffset + m.Start
				}
			}
		}
	}
	t.Fatalf("nm does not list %s in %s", function, path)
	return 0
}

func leaf(m *samples.Mapping, addr uint64) *samples.Location {
	return &samples.Location{Mapping: m, Address: addr, Leaf: true}
}

func TestNativeFunctions(t *testing.T) {
	tests := map[string]struct {
		flags     []string
		functions []string
		unknown   []string
	}{
		"position independent":     {[]string{"-pie", "-fPIE"}, []string{"main", "exported", "hidden"}, nil},
		"not position independent": {[]string{"-no-pie"}, []string{"main", "exported", "hidden"}, nil},
		"static":                   {[]string{"-static", "-no-pie"}, []string{"main", "exported", "hidden"}, nil},
		"stripped to its dynamic symbols": {
			[]string{"-pie", "-fPIE", "-rdynamic", "-s"},
			[]string{"main", "exported"},
			[]string{"hidden"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			flags := append([]string{"-O1", "-g0", "-Wl,--build-id=sha1", "-o", "OUT", "testdata/native.c"}, test.flags...)
			path := build(t, nil, "gcc", flags...)
			// The addresses are taken from the same program with symbols.
			reference := path
			if test.unknown != nil {
				unstripped := append([]string(nil), flags...)
				unstripped = unstripped[:len(unstripped)-1]
				unstripped[4] = "OUT"
				reference = build(t, nil, "gcc", unstripped...)
			}
			p := start(t, path)
			require.Equal(t, "ready", p.line(t))
			maps := mappings(t, p.pid)
			m := mappingOf(t, maps, path)
			s := newSymbolizer(t, Config{})
			for _, function := range test.functions {
				l := leaf(m, addressOf(t, reference, m, function)+1)
				s.Resolve(0, l)
				require.Equal(t, []samples.Line{{Function: function}}, l.Lines)
				require.Equal(t, samples.FrameNative, l.Type)
			}
			for _, function := range test.unknown {
				l := leaf(m, addressOf(t, reference, m, function)+1)
				s.Resolve(0, l)
				require.Empty(t, l.Lines)
				require.True(t, l.Resolved)
			}
			require.Equal(t, uint64(len(test.unknown)), s.Counters().Locations[NoSymbol])
			require.Len(t, m.BuildID, 40)
			out, err := exec.Command("readelf", "-n", path).CombinedOutput()
			require.NoError(t, err)
			require.Contains(t, string(out), m.BuildID)
			require.Empty(t, m.GoBuildID)
		})
	}
}

// TestSharedLibraryAgreesWithNM checks every function that nm lists in the C library.
// Each function must resolve to one of its names, at the first instruction and at a
// later instruction.
func TestSharedLibraryAgreesWithNM(t *testing.T) {
	p := start(t, build(t, nil, "gcc", "-o", "OUT", "testdata/native.c"))
	require.Equal(t, "ready", p.line(t))
	m := mappingOf(t, mappings(t, p.pid), "libc.so")
	f, err := elf.Open(m.Path)
	require.NoError(t, err)
	defer f.Close()
	names := nm(t, m.Path, "-D")
	s := newSymbolizer(t, Config{})
	checked := 0
	for addr, want := range names {
		for _, prog := range f.Progs {
			if prog.Type != elf.PT_LOAD || prog.Flags&elf.PF_X == 0 || addr < prog.Vaddr || addr >= prog.Vaddr+prog.Filesz {
				continue
			}
			l := leaf(m, addr-prog.Vaddr+prog.Off-m.FileOffset+m.Start)
			s.Resolve(0, l)
			require.Len(t, l.Lines, 1, "%#x %v", addr, want)
			require.Contains(t, want, l.Lines[0].Function, "%#x", addr)
			checked++
		}
	}
	require.Greater(t, checked, 1000)
}

// TestJumpsToOtherFilesHaveAName checks that jumps to functions of other files are named
// [plt], because these jumps have no symbols.
func TestJumpsToOtherFilesHaveAName(t *testing.T) {
	p := start(t, build(t, nil, "gcc", "-o", "OUT", "testdata/native.c"))
	require.Equal(t, "ready", p.line(t))
	m := mappingOf(t, mappings(t, p.pid), "libc.so")
	f, err := elf.Open(m.Path)
	require.NoError(t, err)
	defer f.Close()
	plt := f.Section(".plt")
	require.NotNil(t, plt)
	s := newSymbolizer(t, Config{})
	for _, at := range []uint64{0, plt.Size - 1} {
		l := leaf(m, plt.Offset+at-m.FileOffset+m.Start)
		s.Resolve(0, l)
		require.Equal(t, []samples.Line{{Function: "[plt]"}}, l.Lines)
		require.Equal(t, samples.FrameNative, l.Type)
	}
}

func TestCPlusPlusNamesAreReadable(t *testing.T) {
	path := build(t, nil, "g++", "-O1", "-g0", "-no-pie", "-o", "OUT", "testdata/native.cc")
	p := start(t, path)
	require.Equal(t, "ready", p.line(t))
	m := mappingOf(t, mappings(t, p.pid), path)
	const mangled = "_ZN4shop6BasketINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEE3addES6_i"
	l := leaf(m, addressOf(t, path, m, mangled))
	newSymbolizer(t, Config{}).Resolve(0, l)
	require.Len(t, l.Lines, 1)
	require.Equal(t, mangled, l.Lines[0].SystemName)
	require.Regexp(t, `^shop::Basket<std::__cxx11::basic_string<.*>\s*>::add$`, l.Lines[0].Function)
}

func TestDisplayName(t *testing.T) {
	tests := []struct{ name, function, system string }{
		{"main", "main", ""},
		{"_Zfoo", "_Zfoo", ""},
		{"_ZN3foo3barEi", "foo::bar", "_ZN3foo3barEi"},
		{"_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write", "_ZN4core3fmt5write17h0123456789abcdefE"},
		{"_RNvC6_123foo3bar", "123foo::bar", "_RNvC6_123foo3bar"},
		{"_Z" + strings.Repeat("N", 10_000), "_Z" + strings.Repeat("N", 10_000), ""},
	}
	for _, test := range tests {
		function, system := displayName(test.name)
		require.Equal(t, test.function, function)
		require.Equal(t, test.system, system)
	}
}

func TestCWithinAGoProgramIsNative(t *testing.T) {
	for name, flags := range map[string][]string{"plain": nil, "position independent": {"-buildmode=pie"}} {
		t.Run(name, func(t *testing.T) {
			hosttest.Tool(t, "gcc")
			p := start(t, buildGo(t, "../../../../test/testdata/cgo/main.go", flags...))
			var addr uint64
			_, err := fmt.Sscanf(p.line(t), "%x 3", &addr)
			require.NoError(t, err)
			m := mappingAt(mappings(t, p.pid), addr)
			l := leaf(m, addr)
			s := newSymbolizer(t, Config{})
			s.Resolve(0, l)
			require.Equal(t, []samples.Line{{Function: "in_c"}}, l.Lines)
			require.Equal(t, samples.FrameNative, l.Type)
			require.NotEmpty(t, m.GoBuildID)
		})
	}
}

// goCommand returns the path of the go command, which is a large Go
// program that is usually installed.
func goCommand(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("go")
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		hosttest.SkipUnprivileged(t, "no go command: %v", err)
	}
	return path
}

func openObject(t testing.TB, path string) *object {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	st, err := f.Stat()
	require.NoError(t, err)
	o, err := newObject(f, st.Size())
	require.NoError(t, err)
	require.NoError(t, o.index(DefaultCacheBytes))
	return o
}

func gosymTable(t testing.TB, path string) *gosym.Table {
	t.Helper()
	f, err := elf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	section := f.Section(".gopclntab")
	if section == nil {
		t.Skipf("%s has no .gopclntab", path)
	}
	data, err := section.Data()
	require.NoError(t, err)
	text := f.Section(".text").Addr
	symbols, err := f.Symbols()
	if err == nil {
		for _, s := range symbols {
			if s.Name == "runtime.text" {
				text = s.Value
			}
		}
	}
	table, err := gosym.NewTable(nil, gosym.NewLineTable(data, text))
	require.NoError(t, err)
	return table
}

func TestBulkLargeGoProgramAgreesWithGosym(t *testing.T) {
	path := goCommand(t)
	o, table := openObject(t, path), gosymTable(t, path)
	require.Greater(t, len(table.Funcs), 10_000)
	for i := range table.Funcs {
		f := &table.Funcs[i]
		lines, err := o.golang.Lines(f.Entry)
		require.NoError(t, err)
		require.NotEmpty(t, lines, f.Name)
		outer := lines[len(lines)-1]
		name := outer.Function
		if outer.SystemName != "" {
			name = outer.SystemName
		}
		require.Equal(t, f.Name, name)
		file, line, _ := table.PCToLine(f.Entry)
		require.Equal(t, file, lines[0].File, f.Name)
		require.EqualValues(t, max(line, 0), lines[0].Line, f.Name)
	}
	t.Logf("%d functions in an index of %d bytes", len(table.Funcs), memory(o))
}

func TestBulkFunctionsOfTheKernelHaveNamesOfKallsyms(t *testing.T) {
	s := newSymbolizer(t, Config{})
	if err := s.KernelSymbols(); err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	f, err := os.Open("/proc/kallsyms")
	require.NoError(t, err)
	defer f.Close()
	names := make(map[uint64][]string)
	modules := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		field := strings.Fields(lines.Text())
		addr, err := strconv.ParseUint(field[0], 16, 64)
		require.NoError(t, err)
		if strings.ContainsAny(field[1], "tTwW") {
			names[addr] = append(names[addr], strings.Join(field[2:], " "))
		}
		if len(field) > 3 {
			modules++
		}
	}
	require.Greater(t, len(names), 1000)
	kernel := &samples.Mapping{Path: kernelPath}
	for addr, want := range names {
		l := &samples.Location{Type: samples.FrameKernel, Mapping: kernel, Address: addr, Leaf: true}
		s.Resolve(0, l)
		require.Len(t, l.Lines, 1, "%#x %v", addr, want)
		require.Contains(t, want, l.Lines[0].Function)
		require.Equal(t, samples.FrameKernel, l.Type)
	}
	require.NotEmpty(t, kernel.BuildID)

	l := &samples.Location{Type: samples.FrameKernel, Address: 1 << 63}
	s.Resolve(0, l) // has no mapping and is at an address without code
	require.Empty(t, l.Lines)
	require.True(t, l.Resolved)
	c := s.Counters()
	require.Equal(t, uint64(1), c.Locations[NoSymbol])
	require.Positive(t, c.Bytes)
	t.Logf("%d functions, %d symbols of modules, %d bytes", len(names), modules, c.Bytes)
}

func TestVDSO(t *testing.T) {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skipf("vdso symbols of %s are not known here", runtime.GOARCH)
	}
	m := mappingOf(t, mappings(t, os.Getpid()), mappedfile.VDSOPath)
	image, err := mappedfile.VDSO()
	require.NoError(t, err)
	f, err := elf.NewFile(strings.NewReader(string(image)))
	require.NoError(t, err)
	symbols, err := f.DynamicSymbols()
	require.NoError(t, err)
	names := make(map[uint64][]string)
	for _, symbol := range symbols {
		if elf.ST_TYPE(symbol.Info) == elf.STT_FUNC {
			names[symbol.Value] = append(names[symbol.Value], symbol.Name)
		}
	}
	require.NotEmpty(t, names)
	s := newSymbolizer(t, Config{})
	for addr, want := range names {
		l := leaf(m, m.Start+addr)
		s.Resolve(0, l)
		require.Len(t, l.Lines, 1)
		require.Contains(t, want, l.Lines[0].Function)
	}
	require.NotEmpty(t, m.BuildID)
}
