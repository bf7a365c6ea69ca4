// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package flame

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// read returns a CPU profile of the Go compiler. hot.pb.gz comes from a normal build, and
// baseline.pb.gz comes from a build without optimizations.
func read(t testing.TB, name string) *profile.Profile {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	p, err := profile.ParseData(b)
	require.NoError(t, err)
	return p
}

// labelled adds labels for threads and phases to the samples of a profile.
func labelled(p *profile.Profile) *profile.Profile {
	for i, s := range p.Sample {
		s.Label = map[string][]string{"hotprofile.trigger.phase": {[]string{"before", "both", "after"}[i%3]}}
		if i%4 > 0 {
			s.Label["thread.name"] = []string{"worker " + strconv.Itoa(i%4)}
		}
	}
	return p
}

// top runs go tool pprof -top and returns the self value and the total value of each
// function.
func top(t testing.TB, p *profile.Profile, args ...string) map[string][2]int64 {
	t.Helper()
	file := filepath.Join(t.TempDir(), "profile.pb.gz")
	var b bytes.Buffer
	require.NoError(t, p.Write(&b))
	require.NoError(t, os.WriteFile(file, b.Bytes(), 0o600))
	args = append([]string{
		"tool", "pprof", "-top", "-symbolize=none", "-unit=ns",
		"-nodecount=1000000", "-nodefraction=0", "-edgefraction=0",
	}, args...)
	cmd := exec.Command("go", append(args, file)...)
	cmd.Env = append(os.Environ(), "PPROF_TMPDIR="+t.TempDir())
	out, err := cmd.Output()
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^ *([\d.]+(?:e\+\d+)?)(?:ns)? +\S+ +\S+ +([\d.]+(?:e\+\d+)?)(?:ns)? +\S+  (.*)$`)
	rows := make(map[string][2]int64)
	for _, m := range line.FindAllStringSubmatch(string(out), -1) {
		self, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		total, err := strconv.ParseFloat(m[2], 64)
		require.NoError(t, err)
		// pprof marks inlined functions and prints a separate row for them.
		name := strings.TrimSuffix(strings.TrimSuffix(m[3], " (inline)"), " (partial-inline)")
		rows[name] = [2]int64{int64(self), int64(total)}
	}
	require.NotEmpty(t, rows, "%s", out)
	return rows
}

func TestBulkTableAgreesWithPprof(t *testing.T) {
	p := labelled(read(t, "hot.pb.gz"))
	s := New(p)
	for _, test := range []struct {
		filter Filter
		args   []string
	}{
		{Filter{}, nil},
		{Filter{Phase: "before"}, []string{"-tagfocus=hotprofile.trigger.phase=^before$"}},
		{Filter{Thread: "worker 2"}, []string{"-tagfocus=thread.name=^worker 2$"}},
		{Filter{Thread: Unlabelled, Phase: "both"}, []string{"-tagignore=thread.name=.", "-tagfocus=hotprofile.trigger.phase=^both$"}},
	} {
		t.Run(fmt.Sprint(test.filter), func(t *testing.T) {
			want := top(t, p, test.args...)
			got := make(map[string][2]int64)
			table := Query{Of: s, Filter: test.filter}.Table(BySelf, "", 1<<20)
			selves := int64(0)
			for _, r := range table.Rows {
				got[r.Name] = [2]int64{r.Self.Here, r.Total.Here}
				selves += r.Self.Here
			}
			assert.Equal(t, want, got)
			assert.Equal(t, table.Total.Here, selves)
		})
	}
}

// sums checks the invariants that hold for every tree. It returns the sum of the self
// values of each function.
func sums(t *testing.T, tree Tree) map[string]Value {
	t.Helper()
	selves := make(map[string]Value)
	all := tree.PrunedSelf
	var path []Node
	for i, n := range tree.Nodes {
		require.LessOrEqual(t, int(n.Depth), len(path))
		path = append(path[:n.Depth], n)
		if i > 0 {
			parent := path[n.Depth-1]
			require.LessOrEqual(t, n.Total.Here, parent.Total.Here)
			require.LessOrEqual(t, n.Total.There, parent.Total.There)
			f := tree.Functions[n.Function].Name
			v := selves[f]
			v.Here += n.Self.Here
			v.There += n.Self.There
			selves[f] = v
		}
		all.Here += n.Self.Here
		all.There += n.Self.There
	}
	assert.Equal(t, tree.Total, all)
	return selves
}

func TestTree(t *testing.T) {
	here, there := New(read(t, "hot.pb.gz")), New(read(t, "baseline.pb.gz"))
	tree := Query{Of: here, Base: there}.Tree()
	assert.Equal(t, tree.Total, tree.Nodes[0].Total)
	assert.EqualValues(t, 2_410_000_000, tree.Total.Here)
	sums(t, tree)
	for _, n := range tree.Nodes[1:] {
		h, th := n.Total.Share(tree.Total)
		require.GreaterOrEqual(t, max(h, th), tree.MinShare)
	}

	// A profile that is compared with itself has equal values on both sides.
	for _, n := range (Query{Of: here, Base: here}).Tree().Nodes {
		require.Equal(t, n.Total.Here, n.Total.There)
		require.Equal(t, n.Self.Here, n.Self.There)
	}
	// If the two profiles are swapped, the values must be swapped too.
	back := Query{Of: there, Base: here}.Tree()
	require.Len(t, back.Nodes, len(tree.Nodes))
	for i, n := range back.Nodes {
		require.Equal(t, tree.Nodes[i].Total, Value{n.Total.There, n.Total.Here})
		require.Equal(t, tree.Functions[max(tree.Nodes[i].Function, 0)].Name, back.Functions[max(n.Function, 0)].Name)
	}
}

// made returns a profile with the given stacks. A stack is written as "main;work;leaf".
func made(stacks map[string]int64) *profile.Profile {
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "off_cpu", Unit: "nanoseconds"}}}
	functions := make(map[string]*profile.Location)
	for stack, v := range stacks {
		s := &profile.Sample{Value: []int64{v}}
		for name := range strings.SplitSeq(stack, ";") {
			l := functions[name]
			if l == nil {
				f := &profile.Function{ID: uint64(len(p.Function) + 1), Name: name}
				l = &profile.Location{ID: f.ID, Line: []profile.Line{{Function: f, Line: 7}}}
				functions[name] = l
				p.Function, p.Location = append(p.Function, f), append(p.Location, l)
			}
			s.Location = append([]*profile.Location{l}, s.Location...)
		}
		p.Sample = append(p.Sample, s)
	}
	return p
}

// draw returns a line for each node of a tree.
func draw(tree Tree) []string {
	var lines []string
	for _, n := range tree.Nodes[1:] {
		lines = append(lines, fmt.Sprintf("%s%s:%d %d/%d %d/%d", strings.Repeat(" ", int(n.Depth-1)),
			tree.Functions[n.Function].Name, n.Line, n.Total.Here, n.Total.There, n.Self.Here, n.Self.There))
	}
	return lines
}

func TestDifference(t *testing.T) {
	q := Query{
		Of:   New(made(map[string]int64{"main;a": 60, "main;b;c": 30, "main": 10})),
		Base: New(made(map[string]int64{"main;a": 10, "main;b;d": 10, "other": 20})),
	}
	assert.Equal(t, []string{
		"main:7 100/20 10/0",
		" a:7 60/10 60/10",
		" b:7 30/10 0/0",
		"  c:7 30/0 30/0",
		"  d:7 0/10 0/10",
		"other:7 0/20 0/20",
	}, draw(q.Tree()))

	names := func(order Order, search string, limit int) (names []string) {
		for _, r := range q.Table(order, search, limit).Rows {
			names = append(names, r.Name)
		}
		return names
	}
	assert.Equal(t, []string{"a", "c", "main"}, names(BySelf, "", 3))
	assert.Equal(t, []string{"main", "a", "c", "b", "d", "other"}, names(ByTotal, "", 100))
	assert.Equal(t, []string{"a", "b", "c", "d", "main", "other"}, names(ByName, "", 100))
	// The self share of function a grew from 25 % to 60 %. The self share of function main
	// grew from 0 % to 10 %.
	assert.Equal(t, []string{"a", "c", "main", "b", "d", "other"}, names(BySelfDifference, "", 100))
	assert.Equal(t, []string{"main", "a"}, names(ByTotalDifference, "A", 100))
}

func TestRecursionIsCountedOnce(t *testing.T) {
	q := Query{Of: New(made(map[string]int64{"main;walk;walk;walk": 5, "main;walk;leaf;walk": 3, "main;walk": 2}))}
	rows := q.Table(ByName, "", 10).Rows
	require.Equal(t, "walk", rows[2].Name)
	assert.EqualValues(t, 10, rows[2].Total.Here)
	assert.EqualValues(t, 10, rows[2].Self.Here)
}

func TestPrunes(t *testing.T) {
	tree := Query{Of: New(made(map[string]int64{"main;hot": 99_950, "main;cold;a": 30, "main;cold;b": 20}))}.Tree()
	assert.Equal(t, []string{"main:7 100000/0 0/0", " hot:7 99950/0 99950/0"}, draw(tree))
	assert.Equal(t, 3, tree.Pruned)
	assert.EqualValues(t, 50, tree.PrunedSelf.Here)

	// A node with a small value in one profile is still drawn if its value in the other
	// profile is large.
	tree = Query{
		Of:   New(made(map[string]int64{"main;hot": 99_950, "main;cold;a": 50})),
		Base: New(made(map[string]int64{"main;cold;a": 10})),
	}.Tree()
	assert.Equal(t, []string{"main:7 100000/10 0/0", " cold:7 50/10 0/0", "  a:7 50/10 50/10", " hot:7 99950/0 99950/0"}, draw(tree))
}

func TestPartsByLabel(t *testing.T) {
	p := labelled(read(t, "hot.pb.gz"))
	q := Query{Of: New(p), Filter: Filter{Phase: "before", Thread: "worker 1"}}
	count := func(parts []Part) (all Part) {
		for _, p := range parts {
			all.Value.Here += p.Value.Here
			all.Samples += p.Samples
		}
		return all
	}
	assert.Len(t, q.Parts(Phase), 3)
	assert.Len(t, q.Parts(Thread), 4)
	assert.Equal(t, []Part{{Label: "", Value: count(q.Parts(Wait)).Value, Samples: count(q.Parts(Wait)).Samples}}, q.Parts(Wait))
	var want int64
	for _, s := range p.Sample {
		if s.Label["hotprofile.trigger.phase"][0] == "before" {
			want += s.Value[0]
		}
	}
	assert.Equal(t, want, count(q.Parts(Thread)).Samples)
	assert.Equal(t, Part{}, count(Query{Of: q.Of, Filter: Filter{Thread: "nobody"}}.Parts(Phase)))
	assert.Equal(t, 1, len(Query{Of: q.Of, Filter: Filter{Phase: "nothing"}}.Tree().Nodes))
}

func TestUnknownFunctions(t *testing.T) {
	p := made(map[string]int64{"main": 1})
	libc := &profile.Mapping{ID: 1, File: "/usr/lib/libc.so.6"}
	kernel := &profile.Mapping{ID: 2, File: "[kernel.kallsyms]"}
	p.Sample[0].Location = []*profile.Location{
		{ID: 7},
		{ID: 8, Mapping: libc, Address: 0x1234},
		{ID: 9, Mapping: kernel},
		{ID: 1 << 60, Line: []profile.Line{{Function: &profile.Function{}}}},
	}
	p.Location = p.Sample[0].Location
	assert.Equal(t, []string{
		"[unknown]:0 1/0 0/0", " [kernel.kallsyms]:0 1/0 0/0", "  [libc.so.6]:0 1/0 0/0", "   [unknown]:0 1/0 1/0",
	}, draw(Query{Of: New(p)}.Tree()))
}

func TestBulkHostileProfile(t *testing.T) {
	deep := strings.Repeat("deep;", 3*maxStackDepth) + "leaf"
	long := strings.Repeat("x", 2<<20)
	p := made(map[string]int64{
		deep: math.MaxInt64, "b;" + long: math.MaxInt64, "c": -5,
		"<script>alert(1)</script>": math.MaxInt64, "evil\u202ename\x00\x1b[31m\xff": math.MaxInt64 / 3,
	})
	p.Sample[0].Label = map[string][]string{"thread.name": {long}}
	p.Sample[1].Location = append(p.Sample[1].Location, nil)
	p.Sample[2].Value = nil
	s := New(p)
	tree := Query{Of: s, Base: s}.Tree()
	sums(t, tree)
	var out bytes.Buffer
	require.NoError(t, tree.WriteJSON(&out, true))
	assert.Less(t, out.Len(), 8<<20)
	assert.NotContains(t, out.String(), "<")
	assert.NotContains(t, out.String(), "\u202e")
	for _, part := range (Query{Of: s}).Parts(Thread) {
		assert.LessOrEqual(t, len(part.Label), maxLabel)
	}

	empty := New(&profile.Profile{})
	assert.Len(t, Query{Of: empty, Base: empty}.Tree().Nodes, 1)
	assert.Empty(t, Query{Of: empty, Base: empty}.Table(BySelf, "", 10).Rows)
}

func TestCutsStacks(t *testing.T) {
	deep := "main;" + strings.Repeat("deep;", 3*maxStackDepth) + "leaf"
	s := New(made(map[string]int64{deep: 5, "main;leaf": 4}))
	assert.Equal(t, 1, s.Cut)
	table := Query{Of: s}.Table(ByName, "", 10)
	assert.Equal(t, []string{cutName, "deep", "leaf", "main"},
		[]string{table.Rows[0].Name, table.Rows[1].Name, table.Rows[2].Name, table.Rows[3].Name})
	assert.EqualValues(t, 9, table.Rows[2].Self.Here)
	tree := Query{Of: s}.Tree()
	assert.EqualValues(t, MaxDepth, tree.Nodes[MaxDepth].Depth)
	assert.EqualValues(t, 5, tree.PrunedSelf.Here)
}

func TestBulkBoundsFrames(t *testing.T) {
	s := New(distinct(maxFrames/1000, 1100))
	tree := Query{Of: s, Base: s}.Tree()
	assert.LessOrEqual(t, len(tree.Nodes), MaxNodes)
	sums(t, tree)
	assert.Positive(t, s.Cut)
	var selves int64
	for _, r := range (Query{Of: s}).Table(BySelf, "", 1<<30).Rows {
		selves += r.Self.Here
	}
	assert.Equal(t, tree.Total.Here, selves)
}

func TestJSON(t *testing.T) {
	tree := Query{Of: New(made(map[string]int64{"a;b": 3})), Base: New(made(map[string]int64{"a;c": 4}))}.Tree()
	write := func(compared bool) string {
		var b bytes.Buffer
		require.NoError(t, tree.WriteJSON(&b, compared))
		assert.True(t, json.Valid(b.Bytes()))
		return b.String()
	}
	assert.JSONEq(t, `{"unit": "nanoseconds", "min_share": 0.001, "pruned": 0, "pruned_self": 0,
		"samples": 0, "samples_there": 0,
		"names": ["a", "b", "c"], "files": ["", "", ""],
		"function": [-1, 0, 1, 2], "depth": [0, 1, 2, 2], "line": [0, 7, 7, 7],
		"total": [3, 3, 3, 0], "self": [0, 0, 3, 0],
		"total_there": [4, 4, 0, 4], "self_there": [0, 0, 0, 4]}`, write(true))
	assert.NotContains(t, write(false), "there")
}

func TestChance(t *testing.T) {
	// A function with 3 of 240 samples may have 0 of 150 samples in the other profile by
	// chance. For a function with 30 of 240 samples, such a difference is too large.
	assert.True(t, Chance(3./240, 0, Value{240, 150}))
	assert.False(t, Chance(30./240, 0, Value{240, 150}))
	assert.False(t, Chance(0, 30./240, Value{150, 240}))
	assert.True(t, Chance(0, 0, Value{150, 240}))
	assert.True(t, Chance(1, 1, Value{150, 240}))
	assert.False(t, Chance(1, 0, Value{150, 240}))
	assert.False(t, Chance(0.1, 0.2, Value{}), "how many is not known")
	q := Query{Of: New(read(t, "hot.pb.gz")), Base: New(read(t, "baseline.pb.gz"))}
	assert.Equal(t, Value{241, 149}, q.Samples())
}

func TestGrown(t *testing.T) {
	names := func(q Query) (names []string) {
		tree := q.Tree()
		for _, n := range tree.Grown(3) {
			names = append(names, tree.Functions[n.Function].Name)
		}
		return names
	}
	q := Query{
		Of: New(made(map[string]int64{
			"main;serve;page;render": 20, "main;serve;leak;json;parse": 30, "main;serve;leak;json;scan": 20,
			"main;serve;seal;sum;block": 30,
		})),
		Base: New(made(map[string]int64{
			"main;serve;page;render": 80, "main;serve;leak;json;parse": 10, "main;serve;seal;sum;block": 10,
		})),
	}
	// leak grew because json grew, and json grew because of parse and
	// scan. seal grew because of block.
	assert.Equal(t, []string{"json", "block"}, names(q))
	assert.Empty(t, names(Query{Of: q.Of, Base: q.Of}))
	q.Of, q.Base = q.Base, q.Of
	assert.Equal(t, []string{"render"}, names(q))

	// These profiles come from a real program. Most differences between
	// the profiles are chance.
	q = Query{Of: New(read(t, "hot.pb.gz")), Base: New(read(t, "baseline.pb.gz"))}
	assert.Equal(t, []string{"runtime.gcDrain", "cmd/compile/internal/ssa.BuildFuncDebug", "cmd/compile/internal/ssa.cse"}, names(q))
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"main.(*T).f":      "main.(*T).f",
		"a\x00b\nc":        `a\u0000b\u000ac`,
		"\u202eevil\u2066": `\u202eevil\u2066`,
		"a\xffb":           "a\uFFFDb",
		"größe":            "größe",
	} {
		assert.Equal(t, want, Clean(in))
	}
	assert.Equal(t, "abc…", Short("abcdefgh", 6))
	assert.Equal(t, "ab…", Short("abößü", 6))
	assert.Equal(t, "…/c.go", ShortPath("/long/path/c.go", 8))
	assert.Equal(t, "short", Short("short", 5))
}

// distinct returns a profile of n different stacks. Their root frames
// are similar, as in real programs.
func distinct(n, depth int) *profile.Profile {
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "samples", Unit: "count"}, {Type: "cpu", Unit: "nanoseconds"}}}
	const functions = 5000
	for i := range functions {
		f := &profile.Function{ID: uint64(i + 1), Name: fmt.Sprintf("example.com/service/package%d.(*Type).Method%d", i%50, i), Filename: "/src/file.go"}
		p.Function = append(p.Function, f)
		p.Location = append(p.Location, &profile.Location{ID: f.ID, Line: []profile.Line{{Function: f, Line: int64(i % 300)}}})
	}
	for i := range n {
		s := &profile.Sample{
			Value: []int64{1, 10_000_000 + int64(i%1000)},
			Label: map[string][]string{"thread.name": {"worker " + strconv.Itoa(i%16)}},
		}
		s.Location = make([]*profile.Location, depth)
		for j := range s.Location {
			// The outer frames vary little between samples, and the inner frames vary a lot.
			k := (i>>max(0, 16-j))*7919 + j*104729
			s.Location[depth-1-j] = p.Location[k%functions]
		}
		p.Sample = append(p.Sample, s)
	}
	return p
}

func BenchmarkNew(b *testing.B) {
	p := distinct(100_000, 40)
	for b.Loop() {
		New(p)
	}
	b.ReportMetric(float64(New(p).Size()), "bytes-kept")
	b.ReportMetric(float64(len(New(p).parent)), "nodes")
}

func BenchmarkTree(b *testing.B) {
	s, there := New(distinct(100_000, 40)), New(distinct(50_000, 40))
	for name, q := range map[string]Query{
		"one":      {Of: s},
		"thread":   {Of: s, Filter: Filter{Thread: "worker 3"}},
		"compared": {Of: s, Base: there},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var out bytes.Buffer
			for b.Loop() {
				out.Reset()
				if err := q.Tree().WriteJSON(&out, q.Base != nil); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(out.Len()), "JSON-bytes")
		})
	}
}

func BenchmarkTable(b *testing.B) {
	q := Query{Of: New(distinct(100_000, 40)), Base: New(distinct(50_000, 40))}
	b.ReportAllocs()
	for b.Loop() {
		q.Table(BySelf, "", 200)
	}
}
