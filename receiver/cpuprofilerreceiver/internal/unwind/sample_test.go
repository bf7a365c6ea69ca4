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

// process is a fake process with a program, a library and more mappings. It records the
// mappings whose tables were requested.
type process struct {
	only
	more  []*samples.Mapping
	asked []*samples.Mapping
}

func (p *process) Mapped() []*samples.Mapping {
	return append([]*samples.Mapping{p.mapping, {Path: "/library"}}, p.more...)
}

func (p *process) Settle(time.Duration) time.Duration { return 0 }

func (p *process) Lookup(m *samples.Mapping) (*Table, bool) {
	p.asked = append(p.asked, m)
	return p.table, p.table != nil
}

func TestSampleHasTheStackOfItsCopy(t *testing.T) {
	p := &process{only: *onlyOf(tableOf(t, root, frameless))}
	s := perfevent.Sample{
		User:         []uint64{functionAt(1), 1},
		HasRegisters: true,
		Registers:    perfevent.Registers{PC: functionAt(1), SP: stackAt},
		Stack:        words(0, functionAt(0)+1),
	}
	require.Equal(t, Whole, newUnwinder(p).Sample(&s, p, nil))
	require.Equal(t, []uint64{functionAt(1), functionAt(0) + 1}, s.User)
	require.False(t, s.Truncated)

	s.Stack = s.Stack[:8]
	require.Equal(t, CutOff, newUnwinder(p).Sample(&s, p, nil))
	require.Equal(t, []uint64{functionAt(1)}, s.User)
	require.True(t, s.Truncated)
}

func TestFirstSampleOfAProcessRequestsAllItsFiles(t *testing.T) {
	p := &process{only: *onlyOf(nil)}
	s := perfevent.Sample{Registers: perfevent.Registers{PC: codeAt, SP: stackAt}}
	require.Equal(t, Unready, newUnwinder(p).Sample(&s, p, nil))
	require.Contains(t, p.asked, p.mapping)
	require.Len(t, p.asked, 3)

	p = &process{only: *onlyOf(nil), more: make([]*samples.Mapping, maxAhead)}
	require.Equal(t, Unready, newUnwinder(p).Sample(&s, p, nil))
	require.Equal(t, []*samples.Mapping{p.mapping}, p.asked, "of many files it requests the one that it needs")
}

func TestSamplesAllocateNothing(t *testing.T) {
	o := onlyOf(tableOf(t, root, frameless))
	p := &process{only: *o}
	s := perfevent.Sample{Registers: perfevent.Registers{PC: functionAt(1), SP: stackAt}, Stack: words(0, functionAt(0)+1)}
	u := newUnwinder(o)
	require.Zero(t, testing.AllocsPerRun(100, func() { u.Sample(&s, p, nil) }))
}
