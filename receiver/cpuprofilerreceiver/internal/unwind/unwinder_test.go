// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
)

type Registers = perfevent.Registers

// newUnwinder returns an unwinder that uses tables.
func newUnwinder(tables Tables) *unwinder { return &unwinder{tables: tables} }

// endKinds is the number of reasons for the end of a stack.
const endKinds = Lost + 1

func (e End) String() string {
	return [...]string{"whole", "deep", "cut off", "unready", "lost"}[e]
}

// The code of these tests is at the address codeAt, both in memory and in the file.
const (
	codeAt   = 0x400000
	codeSize = 0x10000
	stackAt  = 0x7ffc_0000_1000
)

// tableOf returns a table of functions. Each function has 256 bytes and one rule.
func tableOf(t testing.TB, rules ...rule) *Table {
	t.Helper()
	b := newTableBuilder([]segment{{0, codeAt, codeSize}}, 1<<20)
	require.NotNil(t, b)
	for i, r := range rules {
		require.True(t, b.begin(functionAt(i), functionAt(i+1)))
		require.True(t, b.row(functionAt(i), r))
	}
	return b.finish()
}

func functionAt(i int) uint64 { return codeAt + uint64(i)*256 }

// only is a process with a single mapping.
type only struct {
	mapping *samples.Mapping
	table   *Table
	unready bool
}

func (o *only) Mapping(address uint64) *samples.Mapping {
	if address < o.mapping.Start || address >= o.mapping.Limit {
		return nil
	}
	return o.mapping
}

func (o *only) Settle(time.Duration) time.Duration { return 0 }

func (o *only) Lookup(*samples.Mapping) (*Table, bool) { return o.table, !o.unready }

func onlyOf(t *Table) *only {
	return &only{table: t, mapping: &samples.Mapping{Start: codeAt, Limit: codeAt + codeSize, Path: "/program"}}
}

func words(w ...uint64) []byte {
	var b []byte
	for _, v := range w {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

var (
	root      = rule{cfa: cfaBad, flags: flagRoot}
	frameless = rule{cfa: cfaSP, cfaOff: 16, ra: locCFA, raOff: -8} // the frame has one word besides the return address
	framed    = rule{cfa: cfaFP, cfaOff: 16, ra: locCFA, raOff: -8, fp: locCFA, fpOff: -16}
	leafLR    = rule{cfa: cfaSP}
	goAMD64   = goRule(8, registers{})
)

func TestStacksAreWalkedToTheirEnd(t *testing.T) {
	const (
		at0 = functionAt0
		at1 = functionAt0 + 256
		at2 = functionAt0 + 512
		at3 = functionAt0 + 768
	)
	reg := func(pc, fp uint64) Registers { return Registers{PC: pc, SP: stackAt, FP: fp} }
	for name, c := range map[string]struct {
		rules []rule
		in    perfevent.Sample
		want  []uint64
		end   End
	}{
		"without frame pointers": {
			[]rule{root, frameless, frameless},
			perfevent.Sample{Registers: reg(at2+9, 1), Stack: words(0, at1+5, 0, at0+7, 0)},
			[]uint64{at2 + 9, at1 + 5, at0 + 7},
			Whole,
		},
		"a call that is a function's last instruction": {
			[]rule{root, frameless, {cfa: cfaBad}},
			perfevent.Sample{Registers: reg(at1+9, 1), Stack: words(0, at2, 0, at1, 0)},
			[]uint64{at1 + 9, at2, at1},
			Whole,
		},
		"the leaf at a function's first instruction": {
			[]rule{root, frameless},
			perfevent.Sample{Registers: reg(at1, 1), Stack: words(0, at0+1)},
			[]uint64{at1, at0 + 1},
			Whole,
		},
		"by frame pointers": {
			[]rule{root, framed, framed},
			perfevent.Sample{Registers: reg(at2+1, stackAt+16), Stack: words(0, 0, stackAt+40, at1+1, 0, 0, at0+1)},
			[]uint64{at2 + 1, at1 + 1, at0 + 1},
			Whole,
		},
		"a frame pointer through a function without one": {
			[]rule{root, framed, frameless},
			perfevent.Sample{Registers: reg(at2+1, stackAt+24), Stack: words(0, at1+1, 0, 0, at0+1)},
			[]uint64{at2 + 1, at1 + 1, at0 + 1},
			Whole,
		},
		"a return address in the link register": {
			[]rule{root, frameless, leafLR},
			perfevent.Sample{Registers: Registers{PC: at2 + 4, SP: stackAt, LR: at1 + 4}, Stack: words(0, at0+4)},
			[]uint64{at2 + 4, at1 + 4, at0 + 4},
			Whole,
		},
		"a link register that was not stored": {
			[]rule{root, leafLR, frameless},
			perfevent.Sample{Registers: Registers{PC: at2 + 4, SP: stackAt, LR: at1 + 4}, Stack: words(0, at1+4, 0, at0+4)},
			[]uint64{at2 + 4, at1 + 4},
			Lost,
		},
		"a signed return address": {
			[]rule{root, frameless},
			perfevent.Sample{Registers: reg(at1, 1), Stack: words(0, 0x2a<<56|at0+1)},
			[]uint64{at1, at0 + 1},
			Whole,
		},
		"a procedure linkage table before its push": {
			[]rule{root, {cfa: cfaPLT, cfaOff: 11, ra: locCFA, raOff: -8}},
			perfevent.Sample{Registers: reg(at1+10, 1), Stack: words(at0 + 1)},
			[]uint64{at1 + 10, at0 + 1},
			Whole,
		},
		"a procedure linkage table after its push": {
			[]rule{root, {cfa: cfaPLT, cfaOff: 11, ra: locCFA, raOff: -8}},
			perfevent.Sample{Registers: reg(at1+11, 1), Stack: words(3, at0+1)},
			[]uint64{at1 + 11, at0 + 1},
			Whole,
		},
		"an aligned frame": {
			[]rule{root, {cfa: cfaFPDeref, cfaOff: -8, ra: locCFA, raOff: -8, fp: locFP}},
			perfevent.Sample{Registers: reg(at1, stackAt+16), Stack: words(0, stackAt+48, 0, 0, 0, at0+1)},
			[]uint64{at1, at0 + 1},
			Whole,
		},
		"a signal at a function's first instruction": {
			[]rule{root, frameless, frameless, {cfa: cfaSPDeref, cfaOff: 16, ra: locSP, raOff: 8, flags: flagSignal}},
			perfevent.Sample{Registers: reg(at2+1, 1), Stack: words(0, at3+1, 0, at1, stackAt+40, 0, at0+1)},
			[]uint64{at2 + 1, at3 + 1, at1, at0 + 1},
			Whole,
		},
		"a signal handler's own stack, above": {
			[]rule{root, frameless, {cfa: cfaSPDeref, cfaOff: 16, ra: locSP, raOff: 8, flags: flagSignal}},
			perfevent.Sample{Registers: reg(at2, 1), Stack: words(0, at1, stackAt-4096)},
			[]uint64{at2},
			CutOff,
		},
		"a copy that is used up": {
			[]rule{root, frameless},
			perfevent.Sample{Registers: reg(at1, 1), Stack: words(0, at1+1, 0)},
			[]uint64{at1, at1 + 1},
			CutOff,
		},
		"a copy that ends within a word": {
			[]rule{root, frameless},
			perfevent.Sample{Registers: reg(at1, 1), Stack: words(0, at0+1)[:15]},
			[]uint64{at1},
			CutOff,
		},
		"no copy": {
			[]rule{root, frameless},
			perfevent.Sample{Registers: reg(at1, 1)},
			[]uint64{at1},
			CutOff,
		},
		"an expression that is not known": {
			[]rule{root, {cfa: cfaBad}},
			perfevent.Sample{Registers: reg(at1, stackAt), Stack: words(0, at0+1)},
			[]uint64{at1},
			Lost,
		},
		"unknown code with a frame pointer": {
			[]rule{root},
			perfevent.Sample{Registers: reg(at2, stackAt+8), Stack: words(9, 0, at0+1)},
			[]uint64{at2, at0 + 1},
			Whole,
		},
		"unknown code without a frame pointer": {
			[]rule{root},
			perfevent.Sample{Registers: reg(at2, 5), Stack: words(9, 0, at0+1)},
			[]uint64{at2},
			Lost,
		},
		"a trampoline of Python": {
			[]rule{root, frameless, frameless},
			perfevent.Sample{Registers: reg(at1, 1), Stack: words(0, codeAt-4096, 0, at2+1, 0, at0+1)},
			[]uint64{at1, codeAt - 4096, at2 + 1, at0 + 1},
			Whole,
		},
		"code without a file whose stack has no return address": {
			[]rule{root, frameless, frameless},
			perfevent.Sample{Registers: reg(at1, 1), Stack: words(0, codeAt-4096, 0, 9, 0, at0+1)},
			[]uint64{at1, codeAt - 4096},
			Lost,
		},
		"unknown code with a frame pointer that goes in a circle": {
			[]rule{root},
			perfevent.Sample{Registers: reg(at2, stackAt+8), Stack: words(9, stackAt+8, at2+1)},
			[]uint64{at2},
			Lost,
		},
		"a return address that is none": {
			[]rule{root, frameless},
			perfevent.Sample{Registers: reg(at1, 1), Stack: words(0, 7)},
			[]uint64{at1},
			Lost,
		},
		"what is deeper than the copy from the kernel's stack, in code with frame pointers": {
			[]rule{root, goAMD64, goAMD64},
			perfevent.Sample{Registers: reg(at2, 1), Stack: words(0, at1+1), User: []uint64{at2, at1 + 1, at2 + 3, at0 + 1}},
			[]uint64{at2, at1 + 1, at2 + 3, at0 + 1},
			Whole,
		},
		"recursion that is deeper than the copy": {
			[]rule{root, goAMD64},
			perfevent.Sample{Registers: reg(at1, 1), Stack: words(0, at1+1, 0, at1+1), User: []uint64{at1, at1 + 1, at1 + 1, at1 + 1, at0 + 1}},
			[]uint64{at1, at1 + 1, at1 + 1, at1 + 1, at0 + 1},
			Whole,
		},
		"the kernel's stack in code without frame pointers": {
			[]rule{root, frameless, frameless},
			perfevent.Sample{Registers: reg(at2, 1), Stack: words(0, at1+1), User: []uint64{at2, at1 + 1, at2 + 3, at0 + 1}},
			[]uint64{at2, at1 + 1},
			CutOff,
		},
		"a kernel's stack that is another": {
			[]rule{root, goAMD64, goAMD64},
			perfevent.Sample{Registers: reg(at2, 1), Stack: words(0, at1+1), User: []uint64{at2, at2 + 3, at0 + 1}},
			[]uint64{at2, at1 + 1},
			CutOff,
		},
		"a kernel's stack that does not reach the root either": {
			[]rule{root, goAMD64, goAMD64},
			perfevent.Sample{Registers: reg(at2, 1), Stack: words(0, at1+1), User: []uint64{at2, at1 + 1, at2 + 3}},
			[]uint64{at2, at1 + 1, at2 + 3},
			CutOff,
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := onlyOf(tableOf(t, c.rules...))
			got, end := newUnwinder(o).Unwind(&c.in, nil, o)
			require.Equal(t, c.want, got)
			require.Equal(t, c.end, end, "%s", end)
		})
	}
}

const functionAt0 = codeAt

func TestStackThroughAnUnreadFileIsUnready(t *testing.T) {
	o := onlyOf(nil)
	o.unready = true
	in := perfevent.Sample{Registers: Registers{PC: codeAt, SP: stackAt, FP: 1}, Stack: words(0, 0)}
	got, end := newUnwinder(o).Unwind(&in, nil, o)
	require.Equal(t, []uint64{codeAt}, got)
	require.Equal(t, Unready, end)
}

func TestStacksEndAtTheDepthLimit(t *testing.T) {
	o := onlyOf(tableOf(t, root, frameless))
	stack := make([]byte, 0, 64<<10)
	for range 1000 {
		stack = append(stack, words(0, functionAt(1)+9)...)
	}
	in := perfevent.Sample{Registers: Registers{PC: functionAt(1), SP: stackAt}, Stack: stack}
	got, end := newUnwinder(o).Unwind(&in, nil, o)
	require.Len(t, got, MaxDepth)
	require.Equal(t, Deep, end)
}

func TestStacksWithoutProgressEnd(t *testing.T) {
	still := rule{cfa: cfaSP, ra: locSP}                                  // the frame has no size
	back := rule{cfa: cfaSP, cfaOff: -16, ra: locSP}                      // the stack pointer goes down
	jump := rule{cfa: cfaSPDeref, ra: locSP, raOff: 8, flags: flagSignal} // leads back to the same place
	for name, r := range map[string]rule{"still": still, "back": back, "jump": jump, "register": leafLR} {
		o := onlyOf(tableOf(t, r))
		in := perfevent.Sample{Registers: Registers{PC: functionAt(0) + 1, SP: stackAt, LR: functionAt(0) + 1}, Stack: words(stackAt, functionAt(0)+1)}
		got, end := newUnwinder(o).Unwind(&in, nil, o)
		require.NotEqual(t, Whole, end, name)
		require.LessOrEqual(t, len(got), MaxDepth)
	}
}

func TestRootIsKnownByItsTable(t *testing.T) {
	o := onlyOf(tableOf(t, root, frameless))
	u := newUnwinder(o)
	require.True(t, u.Root(functionAt(0)+3, o))
	require.True(t, u.Root(functionAt(1), o), "the call was the last instruction")
	require.False(t, u.Root(functionAt(1)+1, o))
	require.False(t, u.Root(12, o))
}

func TestTableHasTheRuleOfEveryAddress(t *testing.T) {
	b := newTableBuilder([]segment{{0x1000, codeAt, codeSize}}, 1<<20)
	rules := []rule{{cfa: cfaSP, cfaOff: 8}, {cfa: cfaSP, cfaOff: 16}, {cfa: cfaFP, cfaOff: 16}}
	want := make(map[uint64]rule) // the rules by address
	// The functions have increasing sizes and descending
	// addresses. Some have gaps between them.
	for end, i := uint64(codeAt+codeSize), 1; ; i++ {
		size := uint64(i*7%53 + 3)
		start := end - size
		if start < codeAt+100 {
			break
		}
		require.True(t, b.begin(start, end))
		for at := start; at < end; at += 5 {
			r := rules[int(at)%len(rules)]
			require.True(t, b.row(at, r))
			for a := at; a < end; a++ {
				want[a] = r
			}
		}
		end = start - uint64(i%4)
	}
	table := b.finish()
	for a := uint64(codeAt - 10); a < codeAt+codeSize+10; a++ {
		require.Equal(t, want[a], *table.at(a), "%#x", a)
	}
	addr, ok := table.address(0x1234)
	require.True(t, ok)
	require.EqualValues(t, codeAt+0x234, addr)
	_, ok = table.address(0xfff)
	require.False(t, ok)
	_, ok = table.address(0x1000 + codeSize)
	require.False(t, ok)
	require.True(t, slices.IsSorted(table.pcs))
	require.LessOrEqual(t, table.Bytes(), int64(len(table.pcs))*9+1024)
}

func TestTableIsBounded(t *testing.T) {
	const limit = 4096
	b := newTableBuilder([]segment{{0, codeAt, 1 << 30}}, limit)
	n := 0
	for b.begin(codeAt+uint64(n)*16, codeAt+uint64(n+1)*16) && b.row(codeAt+uint64(n)*16, rule{cfa: cfaSP, cfaOff: int32(n)}) {
		n++
	}
	table := b.finish()
	require.True(t, table.incomplete)
	require.Less(t, n, limit/6)
	require.Less(t, table.Bytes(), int64(8*limit)) // unlike in real programs, each row has its own rule
}

func TestRulesAreBounded(t *testing.T) {
	b := newTableBuilder([]segment{{0, codeAt, 1 << 30}}, 1<<30)
	require.True(t, b.begin(codeAt, codeAt+1<<20))
	for i := range maxRules + 10 {
		b.row(codeAt+uint64(i), rule{cfa: cfaSP, cfaOff: int32(i)})
	}
	table := b.finish()
	require.Len(t, table.rules, maxRules)
	require.Equal(t, cfaBad, table.at(codeAt+maxRules+5).cfa)
}

func TestUnwindingAllocatesNothing(t *testing.T) {
	o := onlyOf(tableOf(t, root, frameless))
	in := perfevent.Sample{Registers: Registers{PC: functionAt(1), SP: stackAt}, Stack: words(0, functionAt(1)+1, 0, functionAt(1)+5, 0, functionAt(0)+1)}
	u := newUnwinder(o)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if _, end := u.Unwind(&in, nil, o); end != Whole {
			t.Fatal(end)
		}
	}))
}
