// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/ulikunitz/xz"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/elffile"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
	"github.com/hotprofile/hotprofile/test/goprogramtest"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

func tool(t testing.TB, name string, args ...string) {
	t.Helper()
	name = hosttest.Tool(t, name)
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// strippedProgram contains the paths of a program before stripping, of its debug
// file, and of the stripped program.
type strippedProgram struct{ whole, debug, stripped string }

func stripped(t testing.TB, flags ...string) strippedProgram {
	t.Helper()
	args := append([]string{"-O1", "-g0", "-pie", "-fPIE", "-rdynamic", "-o", "OUT", "testdata/native.c"}, flags...)
	p := strippedProgram{whole: build(t, nil, "gcc", args...)}
	p.debug, p.stripped = p.whole+".debug", p.whole+".stripped"
	tool(t, "objcopy", "--only-keep-debug", p.whole, p.debug)
	tool(t, "objcopy", "--strip-all", p.whole, p.stripped)
	return p
}

// processWith returns a host with a process, and the process's mapping of the program.
// at is the path of the program in the process's root.
func processWith(t testing.TB, program, at string) (host, *samples.Mapping) {
	t.Helper()
	h := newHost(t)
	content, err := os.ReadFile(program)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(h.processRoot, at)), 0o755))
	h.write(t, at, content)
	m := h.mapping(t, at, filepath.Join(h.processRoot, at))
	m.Start, m.Limit = 0x10_0000, 0x20_0000 // maps the whole file
	return h, m
}

// install copies a file to a path in the process's root.
func (h host) install(t testing.TB, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(h.processRoot, to)), 0o755))
	h.write(t, to, content)
}

func buildIDOf(t testing.TB, program string) string {
	t.Helper()
	o := openObject(t, program)
	require.Len(t, o.buildID, 40)
	return o.buildID
}

// hiddenFunction resolves a function whose name is only in .symtab.
func hiddenFunction(t testing.TB, s *Symbolizer, p strippedProgram, m *samples.Mapping) []samples.Line {
	t.Helper()
	// The names of exported functions are always available.
	l := leaf(m, addressOf(t, p.whole, m, "exported")+1)
	s.Resolve(0, l)
	require.Equal(t, []samples.Line{{Function: "exported"}}, l.Lines)
	l = leaf(m, addressOf(t, p.whole, m, "hidden")+1)
	s.Resolve(0, l)
	require.True(t, l.Resolved)
	return l.Lines
}

func TestSeparateDebugFiles(t *testing.T) {
	const withID, withoutID = "-Wl,--build-id=sha1", "-Wl,--build-id=none"
	byID := func(id string) string { return "/usr/lib/debug/.build-id/" + id[:2] + "/" + id[2:] + ".debug" }
	link := func(t *testing.T, p strippedProgram) {
		tool(t, "objcopy", "--add-gnu-debuglink="+p.debug, p.stripped)
	}
	outside := func(t *testing.T, h host, from string) string {
		path := filepath.Join(h.root, "outside")
		content, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, content, 0o644))
		return path
	}
	// at is the path of the program, and name is the content of its .gnu_debuglink.
	const at, name = "/opt/app/program", "program.debug"
	tests := map[string]struct {
		id      string
		install func(t *testing.T, h host, p strippedProgram)
		linked  bool
		found   bool
	}{
		"by build id": {id: withID, found: true, install: func(t *testing.T, h host, p strippedProgram) {
			h.install(t, p.debug, byID(buildIDOf(t, p.whole)))
		}},
		"by build id, through a link within the root": {id: withID, found: true, install: func(t *testing.T, h host, p strippedProgram) {
			h.install(t, p.debug, "/opt/store/symbols")
			path := filepath.Join(h.processRoot, byID(buildIDOf(t, p.whole)))
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.Symlink("/opt/store/symbols", path))
		}},
		"by build id, another build's": {id: withID, install: func(t *testing.T, h host, p strippedProgram) {
			other := stripped(t, withID, "-DOTHER", "-O2")
			h.install(t, other.debug, byID(buildIDOf(t, p.whole)))
		}},
		"by build id, through a link out of the root": {id: withID, install: func(t *testing.T, h host, p strippedProgram) {
			path := filepath.Join(h.processRoot, byID(buildIDOf(t, p.whole)))
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, os.Symlink(outside(t, h, p.debug), path))
		}},
		"by build id, a FIFO": {id: withID, install: func(t *testing.T, h host, p strippedProgram) {
			path := filepath.Join(h.processRoot, byID(buildIDOf(t, p.whole)))
			require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
			require.NoError(t, unix.Mkfifo(path, 0o644))
		}},
		"by build id, cut": {id: withID, install: func(t *testing.T, h host, p strippedProgram) {
			path := byID(buildIDOf(t, p.whole))
			h.install(t, p.debug, path)
			require.NoError(t, os.Truncate(filepath.Join(h.processRoot, path), 1000))
		}},
		"by link, beside the program":     {id: withoutID, linked: true, found: true, install: func(t *testing.T, h host, p strippedProgram) { h.install(t, p.debug, "/opt/app/"+name) }},
		"by link, in .debug":              {id: withoutID, linked: true, found: true, install: func(t *testing.T, h host, p strippedProgram) { h.install(t, p.debug, "/opt/app/.debug/"+name) }},
		"by link, in /usr/lib/debug":      {id: withoutID, linked: true, found: true, install: func(t *testing.T, h host, p strippedProgram) { h.install(t, p.debug, "/usr/lib/debug/opt/app/"+name) }},
		"by link, with build ids as well": {id: withID, linked: true, found: true, install: func(t *testing.T, h host, p strippedProgram) { h.install(t, p.debug, "/opt/app/"+name) }},
		"by link, another checksum": {id: withoutID, linked: true, install: func(t *testing.T, h host, p strippedProgram) {
			h.install(t, p.whole, "/opt/app/"+name)
		}},
		"nowhere": {id: withID, linked: true, install: func(*testing.T, host, strippedProgram) {}},
	}
	for test, tt := range tests {
		t.Run(test, func(t *testing.T) {
			p := stripped(t, tt.id)
			if tt.linked {
				link(t, p)
			}
			h, m := processWith(t, p.stripped, at)
			tt.install(t, h, p)
			s := newSymbolizer(t, Config{Access: mappedfile.Access{Root: h.root}})
			lines := hiddenFunction(t, s, p, m)
			if tt.found {
				require.Equal(t, []samples.Line{{Function: "hidden"}}, lines)
			} else {
				require.Empty(t, lines)
			}
		})
	}
}

func TestRealProcessWithASeparateDebugFile(t *testing.T) {
	p := stripped(t, "-Wl,--build-id=sha1")
	tool(t, "objcopy", "--add-gnu-debuglink="+p.debug, p.stripped)
	running := start(t, p.stripped)
	require.Equal(t, "ready", running.line(t))
	m := mappingOf(t, mappings(t, running.pid), p.stripped)
	s := newSymbolizer(t, Config{})
	if lines := hiddenFunction(t, s, p, m); len(lines) == 0 && os.Geteuid() != 0 {
		hosttest.SkipUnprivileged(t, "the root of a process cannot be read")
	} else {
		require.Equal(t, []samples.Line{{Function: "hidden"}}, lines)
	}
	s.Close()
	require.Zero(t, s.Counters().Objects)
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range fds {
		target, _ := os.Readlink("/proc/self/fd/" + fd.Name())
		require.NotContains(t, target, "program", "left open")
	}
}

// withMiniDebugInfo adds compressed symbols to the stripped
// program, as Linux distributions do.
func withMiniDebugInfo(t testing.TB, p strippedProgram, compress func([]byte) []byte) {
	t.Helper()
	mini := filepath.Join(t.TempDir(), "mini")
	tool(t, "objcopy", "-S", "--remove-section=.comment", "--keep-symbol=hidden", p.debug, mini)
	content, err := os.ReadFile(mini)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(mini, compress(content), 0o644))
	tool(t, "objcopy", "--add-section=.gnu_debugdata="+mini, p.stripped)
}

func compressed(t testing.TB, cfg xz.WriterConfig, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := cfg.NewWriter(&out)
	require.NoError(t, err)
	_, err = w.Write(content)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

func TestMiniDebugInfo(t *testing.T) {
	p := stripped(t, "-Wl,--build-id=sha1")
	withMiniDebugInfo(t, p, func(b []byte) []byte { return compressed(t, xz.WriterConfig{}, b) })
	h, m := processWith(t, p.stripped, "/program")
	s := newSymbolizer(t, Config{Access: mappedfile.Access{Root: h.root}})
	require.Equal(t, []samples.Line{{Function: "hidden"}}, hiddenFunction(t, s, p, m))
	require.Greater(t, s.Counters().Bytes, int64(0))

	broken := stripped(t, "-Wl,--build-id=sha1")
	withMiniDebugInfo(t, broken, func(b []byte) []byte {
		b = compressed(t, xz.WriterConfig{}, b)
		return b[:len(b)/2]
	})
	h, m = processWith(t, broken.stripped, "/program")
	s = newSymbolizer(t, Config{Access: mappedfile.Access{Root: h.root}})
	require.Empty(t, hiddenFunction(t, s, broken, m), "the others are still there")
}

func TestBulkUnXZ(t *testing.T) {
	content := []byte(strings.Repeat("hidden functions of a program\n", 5000))
	for name, cfg := range map[string]xz.WriterConfig{
		"crc64":                {CheckSum: xz.CRC64},
		"crc32":                {CheckSum: xz.CRC32},
		"sha256":               {CheckSum: xz.SHA256},
		"no check":             {NoCheckSum: true},
		"several blocks":       {BlockSize: 10_000},
		"the largest of dicts": {DictCap: 64 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			b := compressed(t, cfg, content)
			out, err := unxz(b, len(content))
			require.NoError(t, err)
			require.Equal(t, content, out)
			_, err = unxz(b, len(content)-1)
			require.ErrorIs(t, err, errTooLarge)
			for cut := range min(len(b), 200) {
				out, err := unxz(b[:cut], len(content))
				require.True(t, err != nil || bytes.Equal(out, content), "%d bytes", cut)
			}
		})
	}
	if _, err := exec.LookPath("xz"); err == nil {
		for _, flags := range [][]string{{"-6"}, {"-9e"}, {"--check=sha256"}, {"--check=none"}, {"--block-size=20000"}} {
			cmd := exec.Command("xz", append(flags, "-c")...)
			cmd.Stdin = bytes.NewReader(content)
			b, err := cmd.Output()
			require.NoError(t, err)
			out, err := unxz(b, len(content))
			require.NoError(t, err, "%v", flags)
			require.Equal(t, content, out)
		}
	}
}

// TestUnXZBoundsItsMemory uses compressed data whose header requests a dictionary of 4
// GiB.
func TestUnXZBoundsItsMemory(t *testing.T) {
	b := compressed(t, xz.WriterConfig{}, []byte("small"))
	header := b[xzHeaderSize:]
	header[bytes.Index(header, []byte{xzFilterLZMA2, 1})+2] = 40
	allocated := testing.Benchmark(func(tb *testing.B) {
		tb.ReportAllocs()
		for tb.Loop() {
			out, err := unxz(b, 1<<20)
			if err != nil || string(out) != "small" {
				tb.Fatal(err)
			}
		}
	}).AllocedBytesPerOp()
	require.Less(t, allocated, int64(4<<20))
}

func FuzzUnXZ(f *testing.F) {
	f.Add(compressed(f, xz.WriterConfig{}, []byte("some symbols")))
	f.Add(compressed(f, xz.WriterConfig{BlockSize: 4096, CheckSum: xz.CRC32}, bytes.Repeat([]byte("abc"), 4096)))
	f.Add([]byte(xzMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 64 << 10
		if out, err := unxz(b, limit); err == nil && len(out) > limit {
			t.Errorf("%d bytes", len(out))
		}
	})
}

func TestDebugLink(t *testing.T) {
	link := func(name string, pad int) []byte {
		b := append([]byte(name), make([]byte, pad)...)
		return binary.LittleEndian.AppendUint32(b, 0x1234)
	}
	for name, test := range map[string]struct {
		content []byte
		want    string
	}{
		"a name":           {link("a.debug", 1), "a.debug"},
		"padded":           {link("ab.debug", 4), "ab.debug"},
		"no name":          {link("", 4), ""},
		"a path":           {link("../debug", 4), ""},
		"a directory":      {link("..", 2), ""},
		"without checksum": {[]byte("a.debug\x00"), ""},
		"without an end":   {[]byte("a.debug"), ""},
	} {
		f := elffile.New(bytes.NewReader(test.content), int64(len(test.content)))
		f.Sections = []elffile.Section{{Name: ".gnu_debuglink", Size: f.Size}}
		got, sum, ok := debugLink(f)
		require.Equal(t, test.want, got, name)
		require.Equal(t, test.want != "", ok, name)
		if ok {
			require.EqualValues(t, 0x1234, sum)
		}
	}
}

// syntheticSymbols returns an ELF file that contains only a symbol table,
// as a separate debug file does.
func syntheticSymbols(names ...string) []byte {
	le := binary.LittleEndian
	symbols, strings := make([]byte, elf.Sym64Size), []byte{0}
	for i, name := range names {
		symbols = le.AppendUint32(symbols, uint32(len(strings)))
		symbols = append(symbols, elf.ST_INFO(elf.STB_LOCAL, elf.STT_FUNC), 0)
		symbols = le.AppendUint16(symbols, 1)
		symbols = le.AppendUint64(symbols, uint64(goprogramtest.Text+i*32))
		symbols = le.AppendUint64(symbols, 32)
		strings = append(append(strings, name...), 0)
	}
	out := goprogramtest.ELF()
	headers := make([]byte, 3*goprogramtest.SectionHeaderSize)
	section := func(i int, kind elf.SectionType, link uint32, content []byte) {
		h := headers[i*goprogramtest.SectionHeaderSize:]
		le.PutUint32(h[4:], uint32(kind))
		le.PutUint64(h[24:], uint64(len(out)))
		le.PutUint64(h[32:], uint64(len(content)))
		le.PutUint32(h[40:], link)
		out = append(out, content...)
	}
	section(1, elf.SHT_SYMTAB, 2, symbols)
	section(2, elf.SHT_STRTAB, 0, strings)
	le.PutUint64(out[40:], uint64(len(out)))
	le.PutUint16(out[58:], goprogramtest.SectionHeaderSize)
	le.PutUint16(out[60:], 3)
	le.PutUint16(out[62:], 2)
	return append(out, headers...)
}

// FuzzSeparateSymbols reads the symbols of a program from a fuzzed debug file. It
// covers debug files on disk and debug files in memory.
func FuzzSeparateSymbols(f *testing.F) {
	program, err := elffile.Parse(bytes.NewReader(goprogramtest.Program(120)), int64(len(goprogramtest.Program(120))))
	require.NoError(f, err)
	read := func(file []byte, opened *mappedfile.Reader, limit int64) (*symbolTable, error) {
		separate, err := elffile.Parse(bytes.NewReader(file), int64(len(file)))
		if err != nil {
			return nil, err
		}
		return newSymbolTable(program, &symbolFile{f: separate, file: opened}, limit, func(uint64) bool { return false })
	}
	seed := syntheticSymbols("first", "_ZN3foo3barEi")
	for _, opened := range []*mappedfile.Reader{nil, new(mappedfile.Reader)} {
		table, err := read(seed, opened, 1<<20)
		require.NoError(f, err)
		lines, err := table.lines(goprogramtest.Text + 33)
		require.NoError(f, err)
		require.Equal(f, []samples.Line{{Function: "foo::bar", SystemName: "_ZN3foo3barEi"}}, lines)
	}
	f.Add(seed, uint64(goprogramtest.Text))
	f.Fuzz(func(t *testing.T, file []byte, pc uint64) {
		const limit = 64 << 10
		for _, opened := range []*mappedfile.Reader{nil, new(mappedfile.Reader)} {
			program.SetBudget(elffile.IndexBudget)
			table, err := read(file, opened, limit)
			if err != nil || table == nil {
				continue
			}
			if table.bytes() > limit {
				t.Errorf("%d bytes held", table.bytes())
			}
			for _, pc := range []uint64{pc, goprogramtest.Text, goprogramtest.Text + 40} {
				_, _ = table.lines(pc)
			}
		}
	})
}
