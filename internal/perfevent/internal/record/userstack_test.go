// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
	"github.com/hotprofile/hotprofile/test/perftest"
)

func with(sample []uint64, more ...uint64) []uint64 {
	return (&perftest.Packed{Words: sample}).With(more...).Words
}

func TestDecodeUserStack(t *testing.T) {
	amd64, ok := registersOf("amd64")
	require.True(t, ok)
	arm64, ok := registersOf("arm64")
	require.True(t, ok)
	for name, c := range map[string]struct {
		registers RegisterSet
		more      []uint64
		want      Sample
	}{
		"amd64": {
			amd64,
			[]uint64{sys.RegistersABI64, 0xa1, 0xc3, 0xb9, 0x59, 0x19, 0xd9, 0xe9, 16, 1, 2, 16},
			Sample{HasRegisters: true, Registers: Registers{PC: 0x19, SP: 0x59, FP: 0xb9, BCP: 0xd9, First: 0xa1, Third: 0xc3, G: 0xe9}, Stack: ring.Bytes([]uint64{1, 2})},
		},
		"arm64": {
			arm64,
			[]uint64{sys.RegistersABI64, 1, 3, 22, 28, 29, 30, 31, 32, 16, 1, 2, 16},
			Sample{HasRegisters: true, Registers: Registers{PC: 32, SP: 31, FP: 29, LR: 30, BCP: 22, First: 1, Third: 3, G: 28}, Stack: ring.Bytes([]uint64{1, 2})},
		},
		"the stack is shorter than reserved": {
			amd64,
			[]uint64{sys.RegistersABI64, 0, 0, 1, 2, 3, 4, 5, 24, 1, 2, 3, 8},
			Sample{HasRegisters: true, Registers: Registers{PC: 3, SP: 2, FP: 1, BCP: 4, G: 5}, Stack: ring.Bytes([]uint64{1})},
		},
		"no stack": {
			amd64,
			[]uint64{sys.RegistersABI64, 0, 0, 1, 2, 3, 4, 5, 0},
			Sample{HasRegisters: true, Registers: Registers{PC: 3, SP: 2, FP: 1, BCP: 4, G: 5}},
		},
		"no registers":     {amd64, []uint64{0, 0}, Sample{}},
		"a 32-bit program": {amd64, []uint64{1, 0, 0, 1, 2, 3, 4, 5, 8, 5, 8}, Sample{}},
	} {
		for _, cgroup := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				want, words := c.want, with(perftest.Sample(sys.MiscUser, 1, sys.ContextUser, 0x10), c.more...)
				if cgroup {
					want.CgroupID, words = 77, with(words, 77)
				}
				want.User, want.Period = []uint64{0x10}, 1000
				d := Decoder{Registers: c.registers, Cgroup: cgroup, MaxStack: 127}
				var rec Record
				require.Equal(t, decoded, d.decode(words, &rec))
				require.Equal(t, want, rec.Sample)
			})
		}
	}
}

func TestDecodeRejectsCorruptUserStacks(t *testing.T) {
	registers, _ := registersOf("amd64")
	for name, more := range map[string][]uint64{
		"nothing":                   {},
		"no size":                   {0},
		"registers cut off":         {sys.RegistersABI64, 1, 2, 3},
		"stack cut off":             {sys.RegistersABI64, 0, 0, 1, 2, 3, 4, 5, 16, 1, 2},
		"size of half a word":       {sys.RegistersABI64, 0, 0, 1, 2, 3, 4, 5, 12, 1, 2, 8},
		"size of all memory":        {sys.RegistersABI64, 0, 0, 1, 2, 3, 4, 5, 1 << 63, 1, 2, 8},
		"more copied than reserved": {sys.RegistersABI64, 0, 0, 1, 2, 3, 4, 5, 8, 1, 16},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decoder{Registers: registers, MaxStack: 127}
			var rec Record
			require.Equal(t, corrupt, d.decode(with(perftest.Sample(sys.MiscUser, 1, sys.ContextUser, 0x10), more...), &rec))
		})
	}
}

func TestRegistersForSizesOfUserStacks(t *testing.T) {
	for _, bytes := range []int{8, 16384, MaxUserStack} {
		_, err := RegistersFor(bytes)
		require.NoError(t, err, bytes)
	}
	for _, bytes := range []int{4, 16385, MaxUserStack + 8} {
		_, err := RegistersFor(bytes)
		require.Error(t, err, bytes)
	}
}
