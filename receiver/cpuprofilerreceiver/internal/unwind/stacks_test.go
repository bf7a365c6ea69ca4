// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// programProcess is a process with two files. The tables of the files are
// available from the second lookup on.
type programProcess struct {
	executable, libc *samples.Mapping
	tables           map[*samples.Mapping]*Table
	asked            map[*samples.Mapping]int
	whole, other     int
	settled          int
}

func (p *programProcess) Mapping(a uint64) *samples.Mapping {
	if a >= codeAt && a < codeAt+codeSize {
		return p.executable
	}
	return nil
}

func (p *programProcess) Mapped() (all []*samples.Mapping) {
	for _, m := range []*samples.Mapping{p.executable, p.libc} {
		if m != nil {
			all = append(all, m)
		}
	}
	return all
}

func (p *programProcess) ExecutableAndLibc() (executable, libc *samples.Mapping) {
	return p.executable, p.libc
}

func (p *programProcess) Stack(_ *perfevent.Sample, whole bool) *samples.Stack {
	if whole {
		p.whole++
	} else {
		p.other++
	}
	return &samples.Stack{Whole: whole}
}

func (p *programProcess) Settle(time.Duration) time.Duration { p.settled++; return time.Hour }

func (p *programProcess) Lookup(m *samples.Mapping) (*Table, bool) {
	if p.asked[m]++; p.asked[m] == 1 {
		return nil, false
	}
	return p.tables[m], true
}

// newProgram returns a process. executable and libc determine whether the executable and
// the C library have frame pointers.
func newProgram(executable, libc bool) *programProcess {
	table := func(with bool) *Table {
		if with {
			return &Table{code: coverage{framePointer: 100}}
		}
		return &Table{code: coverage{other: 100}}
	}
	p := &programProcess{
		executable: &samples.Mapping{Start: codeAt, Limit: codeAt + codeSize, Path: "/program"},
		libc:       &samples.Mapping{Path: "/libc.so.6"},
		asked:      map[*samples.Mapping]int{},
	}
	p.tables = map[*samples.Mapping]*Table{p.executable: table(executable), p.libc: table(libc)}
	return p
}

func TestStacksAreCopiedWhereAProgramKeepsNoFramePointers(t *testing.T) {
	const bytes = 16384
	for name, c := range map[string]struct {
		mode             Mode
		executable, libc bool
		before, after    int
	}{
		"both keep them":          {CopiesWhereNeeded, true, true, 0, 0},
		"the executable does not": {CopiesWhereNeeded, false, true, 0, bytes},
		"the C library does not":  {CopiesWhereNeeded, true, false, 0, bytes},
		"always":                  {Copies, true, true, bytes, bytes},
		"never":                   {FramePointers, false, false, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProgram(c.executable, c.libc)
			s := NewStacks(StacksConfig{Mode: c.mode, Bytes: bytes, Tables: p})
			require.Equal(t, c.before, s.Copied())
			for range 3 { // at first, the files are being read
				require.NotNil(t, s.Of(p, &perfevent.Sample{User: []uint64{functionAt(0)}}))
			}
			require.Equal(t, c.after, s.Copied())
			s.Forget()
			require.Equal(t, c.before, s.Copied())
		})
	}
}

func TestProgramIsCheckedOnceUntilItChanges(t *testing.T) {
	p := newProgram(true, true)
	s := NewStacks(StacksConfig{Mode: CopiesWhereNeeded, Bytes: 1024, Tables: p})
	s.Prepare(p)
	s.Prepare(p)
	asked := p.asked[p.executable]
	for range 10 {
		s.Of(p, &perfevent.Sample{User: []uint64{functionAt(0)}})
	}
	require.Equal(t, asked, p.asked[p.executable])
	after := newProgram(false, true)
	p.executable, p.libc, p.tables, p.asked = after.executable, after.libc, after.tables, after.asked
	s.Prepare(p)
	s.Prepare(p)
	require.Equal(t, 1024, s.Copied())
}

func TestStackThatReachesItsEntryIsWhole(t *testing.T) {
	p := newProgram(true, true)
	p.tables[p.executable] = tableOf(t, root, frameless)
	p.asked[p.executable] = 1
	s := NewStacks(StacksConfig{Mode: Copies, Bytes: 1024, Tables: p})
	sample := perfevent.Sample{
		User: []uint64{functionAt(1)}, HasRegisters: true,
		Registers: perfevent.Registers{PC: functionAt(1), SP: stackAt}, Stack: words(0, functionAt(0)+1),
	}
	require.True(t, s.Of(p, &sample).Whole)
	require.Equal(t, []uint64{functionAt(1), functionAt(0) + 1}, sample.User)
	require.False(t, s.Of(p, &perfevent.Sample{User: []uint64{functionAt(1)}}).Whole, "it has no copy, as of one that is exiting")
	require.Equal(t, []int{1, 1}, []int{p.whole, p.other})
}

// TestFirstStackWaitsForItsTables checks that unwinding waits for a limited time while
// the table of a new program is built.
func TestFirstStackWaitsForItsTables(t *testing.T) {
	p := newProgram(true, true)
	p.tables[p.executable] = tableOf(t, root, frameless)
	s := NewStacks(StacksConfig{Mode: Copies, Bytes: 1024, Tables: p})
	sample := func() *perfevent.Sample {
		return &perfevent.Sample{
			User: []uint64{functionAt(1)}, HasRegisters: true,
			Registers: perfevent.Registers{PC: functionAt(1), SP: stackAt}, Stack: words(0, functionAt(0)+1),
		}
	}
	s.Wait(time.Second)
	require.True(t, s.Of(p, sample()).Whole)
	require.Equal(t, 1, p.settled)
	clear(p.asked)
	require.False(t, s.Of(p, sample()).Whole, "it has waited long enough")
	require.Equal(t, 1, p.settled)
}

func TestStackEndsAtInvalidFramePointers(t *testing.T) {
	const code = 0x401000
	for name, test := range map[string]struct{ user, want []uint64 }{
		"whole":             {[]uint64{code, code + 4}, []uint64{code, code + 4}},
		"zero":              {[]uint64{code, 0, code}, []uint64{code}},
		"text of a string":  {[]uint64{code, code, 0x4c4c454853003700, code}, []uint64{code, code}},
		"a small number":    {[]uint64{code, 7}, []uint64{code}},
		"the vsyscall page": {[]uint64{0xffffffffff600000, code}, []uint64{0xffffffffff600000, code}},
		"no stack":          {nil, nil},
		"a call to nothing": {[]uint64{0, code}, []uint64{}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.want, reached(test.user)) })
	}
}
