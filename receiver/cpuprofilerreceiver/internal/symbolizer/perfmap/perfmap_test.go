// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfmap

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/samples"
)

const plenty = 1 << 20

func indexOf(t testing.TB, lines string) *Index {
	t.Helper()
	m := New(plenty)
	require.Equal(t, len(lines), m.Add([]byte(lines)))
	return m.Index()
}

func TestFind(t *testing.T) {
	tests := map[string]struct {
		lines string
		want  map[uint64]string
	}{
		"entries in any order": {
			"2000 10 second\n1000 100 first\n",
			map[uint64]string{0xfff: "", 0x1000: "first", 0x10ff: "first", 0x1100: "", 0x2000: "second", 0x200f: "second", 0x2010: ""},
		},
		"numbers as the JVM writes them, names with blanks": {
			"0x00007f0b5cec71c0 0x0000000000000270 int Busy.fib(int, long)\n",
			map[uint64]string{0x7f0b5cec71c0: "int Busy.fib(int, long)"},
		},
		"the same code anew": {"1000 10 old\n1000 20 new\n", map[uint64]string{0x1000: "new", 0x1018: "new"}},
		"a later entry takes a part: the rest is gone too": {
			"1000 100 old\n1040 10 new\n",
			map[uint64]string{0x1000: "", 0x1040: "new", 0x1050: ""},
		},
		"a later entry takes the place of several": {
			"1000 10 a\n1010 10 b\n1020 10 c\n1008 10 new\n",
			map[uint64]string{0x1000: "", 0x1008: "new", 0x1017: "new", 0x1018: "", 0x1020: "c"},
		},
		"an earlier entry does not come back": {
			"1000 100 first\n1000 10 second\n1000 8 third\n",
			map[uint64]string{0x1000: "third", 0x1009: "", 0x1050: ""},
		},
		"lines that are none": {
			"\n \nx 10 name\n1000 name\n1000 0 empty\n1000 10\n1000 10 \n1000 ffffffffff huge\nffffffffffffffff 10 wraps\n10000000000000000 10 long\n0x 10 name\n3000 10 good\r\n",
			map[uint64]string{0x1000: "", 0x3000: "good"},
		},
		"nothing": {"", map[uint64]string{0: "", 1 << 63: ""}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			x := indexOf(t, test.lines)
			for pc, want := range test.want {
				require.Equal(t, want, string(find(x, pc)), "%#x", pc)
			}
		})
	}
}

func TestNamesAreCut(t *testing.T) {
	x := indexOf(t, "1000 10 "+strings.Repeat("n", maxName+1)+"\n")
	require.Len(t, find(x, 0x1000), maxName)
}

// TestAddDoesNotDependOnPieces adds entries in pieces of random sizes. An entry must be
// found if no later entry overlaps it. The name of a replaced entry must not be found.
func TestAddDoesNotDependOnPieces(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	type code struct {
		start, end uint64
		name       string
	}
	for range 50 {
		var lines []byte
		var all []code
		for i := range 300 {
			c := code{name: fmt.Sprint("f", i)}
			c.start = uint64(0x1000 + r.IntN(2000))
			c.end = c.start + uint64(1+r.IntN(40))
			lines = fmt.Appendf(lines, "%x %x %s\n", c.start, c.end-c.start, c.name)
			all = append(all, c)
		}
		m := New(plenty)
		for rest := lines; len(rest) > 0; {
			rest = rest[m.Add(rest[:min(len(rest), 40+r.IntN(400))]):]
			if r.IntN(3) > 0 {
				continue
			}
			before := m.Index()
			was := string(find(before, 0x1100))
			rest = rest[m.Add(rest[:min(len(rest), 100)]):]
			m.Index()
			require.Equal(t, was, string(find(before, 0x1100)), "an index does not change")
		}
		for _, x := range []*Index{indexOf(t, string(lines)), m.Index()} {
			whole := 0
			for i, c := range all {
				if slices.ContainsFunc(all[i+1:], func(later code) bool { return later.start < c.end && later.end > c.start }) {
					continue
				}
				whole++
				for pc := c.start; pc < c.end; pc++ {
					require.Equal(t, c.name, string(find(x, pc)), "%#x", pc)
				}
			}
			require.Greater(t, whole, 10)
			for pc := uint64(0x1000); pc < 0x1800; pc++ {
				if name := string(find(x, pc)); name != "" {
					require.True(t, slices.ContainsFunc(all, func(c code) bool { return c.name == name && pc >= c.start && pc < c.end }))
				}
			}
		}
	}
}

func TestMemoryIsBounded(t *testing.T) {
	const limit = 64 << 10
	m := New(limit)
	// Replaced entries must not use memory.
	for i := range 100_000 {
		m.Add(fmt.Appendf(nil, "%x 100 replaced again and again\n", 0x1000+i%8))
	}
	require.False(t, m.full)
	x := m.Index()
	require.LessOrEqual(t, x.Bytes(), int64(limit))
	require.Len(t, x.entries, 1)

	for i := range 100_000 {
		m.Add(fmt.Appendf(nil, "%x 1 %d\n", 0x10000+i, i))
	}
	require.True(t, m.full)
	x = m.Index()
	require.LessOrEqual(t, x.Bytes(), int64(limit))
	require.Equal(t, "0", string(find(x, 0x10000)), "what came before stays")
	require.Greater(t, len(x.entries), 500)

	var more []byte
	for i := range 10_000 {
		more = fmt.Appendf(more, "%x 1 %d\n", 0x10000+i, i)
	}
	require.Zero(t, testing.AllocsPerRun(20, func() { m.Add(more) }), "nothing is sorted again in vain")
}

func TestLine(t *testing.T) {
	none := samples.FrameType("")
	tests := []struct {
		name           string
		runtime        samples.FrameType
		function, file string
		start          int64
		kind           samples.FrameType
	}{
		{"py::fib:/srv/app.py", none, "fib", "/srv/app.py", 0, samples.FramePython},
		{"py::Basket.add.<locals>.<genexpr>:/srv/a:b.py", none, "Basket.add.<locals>.<genexpr>", "/srv/a:b.py", 0, samples.FramePython},
		{"py::", none, "py::", "", 0, samples.FramePython},
		{"JS:*fib /srv/fib.js:1:13", none, "fib", "/srv/fib.js", 1, samples.FrameV8},
		{"JS:^get size node:internal/util:73:20", none, "get size", "node:internal/util", 73, samples.FrameV8},
		{"LazyCompile:~add /srv/a dir/b.js:12:3", none, "add", "/srv/a dir/b.js", 12, samples.FrameV8},
		{"JS:* file:///srv/m.mjs:7:3", none, "(anonymous)", "file:///srv/m.mjs", 7, samples.FrameV8},
		{"JS:*f evalmachine.<anonymous>:2:1", none, "f", "evalmachine.<anonymous>", 2, samples.FrameV8},
		{"Eval:~ /srv/fib.js:1:1", none, "(toplevel)", "/srv/fib.js", 1, samples.FrameV8},
		{"JS:*fib", none, "fib", "", 0, samples.FrameV8},
		{"Builtin:ArrayMap", none, "Builtin:ArrayMap", "", 0, samples.FrameV8},
		{"RegExp:^a+$", none, "RegExp:^a+$", "", 0, samples.FrameV8},
		{"int Busy.fib(int)", samples.FrameJVM, "Busy.fib", "", 0, samples.FrameJVM},
		{"java.lang.Object java.util.HashMap$Node.getValue()", samples.FrameJVM, "java.util.HashMap$Node.getValue", "", 0, samples.FrameJVM},
		{"void org.Box.<init>(int, long)", samples.FrameJVM, "org.Box.<init>", "", 0, samples.FrameJVM},
		{"Lorg/shop/Box;::total", samples.FrameJVM, "org.shop.Box.total", "", 0, samples.FrameJVM},
		{"I2C/C2I adapters", samples.FrameJVM, "I2C/C2I adapters", "", 0, samples.FrameJVM},
		{"StubRoutines (2)", samples.FrameJVM, "StubRoutines (2)", "", 0, samples.FrameJVM},
		{"Interpreter", samples.FrameJVM, "Interpreter", "", 0, samples.FrameJVM},
		{"void [System.Private.CoreLib] System.Threading.Thread::StartCallback()[PreJIT]", samples.FrameDotnet, "System.Threading.Thread.StartCallback", "", 0, samples.FrameDotnet},
		{"instance int32[] [shop] Shop.Basket`1[System.__Canon]::Add(!0,int32)[OptimizedTier1]", samples.FrameDotnet, "Shop.Basket`1[System.__Canon].Add", "", 0, samples.FrameDotnet},
		{"GenerateResolveStub<ResolveStub>", samples.FrameDotnet, "GenerateResolveStub<ResolveStub>", "", 0, samples.FrameDotnet},
		{"int Busy.fib(int)", none, "int Busy.fib(int)", "", 0, samples.FrameNative},
		{"lua::\xff", none, "lua::?", "", 0, samples.FrameNative},
	}
	for _, test := range tests {
		line, kind := Line(test.name, test.runtime)
		want := samples.Line{Function: test.function, File: test.file, StartLine: test.start}
		if name := strings.ToValidUTF8(test.name, "?"); name != test.function {
			want.SystemName = name
		}
		require.Equal(t, want, line, test.name)
		require.Equal(t, test.kind, kind, test.name)
	}
	require.Equal(t, samples.FrameJVM, RuntimeOf("/usr/lib/jvm/lib/server/libjvm.so"))
	require.Equal(t, samples.FrameDotnet, RuntimeOf("/usr/share/dotnet/libcoreclr.so"))
	require.Equal(t, none, RuntimeOf("/usr/bin/node"))
}

func FuzzMap(f *testing.F) {
	f.Add([]byte("1000 10 a\n0x1008 0x10 b c\n1004 2 d\nx\n"), uint64(0x1004))
	f.Add([]byte("ffffffffffffffff 1 a\n0 1 b\n"), uint64(0))
	f.Fuzz(func(t *testing.T, lines []byte, pc uint64) {
		const limit = 4 << 10
		m := New(limit)
		half := m.Add(lines[:len(lines)/2])
		find(m.Index(), pc)
		m.Add(lines[half:])
		x := m.Index()
		if x.Bytes() > limit {
			t.Errorf("%d bytes", x.Bytes())
		}
		name := find(x, pc)
		if bytes.IndexByte(name, '\n') >= 0 || len(name) > maxName {
			t.Errorf("name %q", name)
		}
		for i := 1; i < len(x.entries); i++ {
			if x.entries[i-1].end() > x.entries[i].start {
				t.Errorf("entries overlap: %v", x.entries[i-1:i+1])
			}
		}
	})
}

func FuzzLine(f *testing.F) {
	for _, name := range []string{"py::a:b", "JS:*f /a b:1:2", "Lorg/A;::b", "int A.b(int)", "void [A] B::C(D)[Tier0]", "] ::("} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		for _, runtime := range []samples.FrameType{"", samples.FrameJVM, samples.FrameDotnet} {
			if line, kind := Line(name, runtime); kind == "" || name != "" && line.Function == "" {
				t.Errorf("%+v %q", line, kind)
			}
		}
	})
}

// BenchmarkAdd adds the map of a large program. For comparison, it
// also measures scanning the lines.
func BenchmarkAdd(b *testing.B) {
	content := largeMap(50_000)
	b.Run("map", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(content)))
		for b.Loop() {
			m := New(64 << 20)
			m.Add(content)
			if len(m.Index().entries) != 50_000 {
				b.Fatal("entries are missing")
			}
		}
	})
	b.Run("baseline=lines", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(content)))
		for b.Loop() {
			n := 0
			for range bytes.Lines(content) {
				n++
			}
		}
	})
}

// BenchmarkFind looks up one address. For comparison, it also
// measures a search line by line.
func BenchmarkFind(b *testing.B) {
	content := largeMap(50_000)
	m := New(64 << 20)
	m.Add(content)
	x := m.Index()
	pc := func(i int) uint64 { return 0x7f0000000000 + uint64(i*7919%50_000)*0x100 + 5 }
	b.Run("index", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			if find(x, pc(i)) == nil {
				b.Fatal("not found")
			}
			i++
		}
	})
	b.Run("baseline=linear", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			at := pc(i)
			for line := range bytes.Lines(content) {
				if start, size, _, ok := parse(line); ok && at >= start && at-start < uint64(size) {
					break
				}
			}
			i++
		}
	})
}

func largeMap(n int) []byte {
	var out []byte
	for i := range n {
		out = fmt.Appendf(out, "%x %x JS:*function%d /srv/application/node_modules/module/lib/file%d.js:%d:%d\n",
			0x7f0000000000+i*7919%n*0x100, 0xf0, i, i%100, i%1000, 5)
	}
	return out
}

// find returns the name of the code at pc. It returns nil if the code has no name.
func find(x *Index, pc uint64) []byte {
	if n := x.Entry(pc); n >= 0 {
		return x.Name(n)
	}
	return nil
}
