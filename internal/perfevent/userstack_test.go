// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// with appends to a sample.
func with(words []uint64, more ...uint64) []uint64 {
	h := parseHeader(words[0])
	p := &packed{words: append(words, more...)}
	return p.header(h.kind, h.misc).words
}

func TestDecodeUserStack(t *testing.T) {
	amd64, ok := registersOf("amd64")
	require.True(t, ok)
	arm64, ok := registersOf("arm64")
	require.True(t, ok)
	for name, c := range map[string]struct {
		registers registerSet
		more      []uint64
		want      Sample
	}{
		"amd64": {
			amd64,
			[]uint64{abi64, 0xb9, 0x59, 0x19, 16, 1, 2, 16},
			Sample{HasRegisters: true, Registers: Registers{PC: 0x19, SP: 0x59, FP: 0xb9}, Stack: bytesOf([]uint64{1, 2})},
		},
		"arm64": {
			arm64,
			[]uint64{abi64, 29, 30, 31, 32, 16, 1, 2, 16},
			Sample{HasRegisters: true, Registers: Registers{PC: 32, SP: 31, FP: 29, LR: 30}, Stack: bytesOf([]uint64{1, 2})},
		},
		"less stack than room for it": {
			amd64,
			[]uint64{abi64, 1, 2, 3, 24, 1, 2, 3, 8},
			Sample{HasRegisters: true, Registers: Registers{PC: 3, SP: 2, FP: 1}, Stack: bytesOf([]uint64{1})},
		},
		"no stack": {
			amd64,
			[]uint64{abi64, 1, 2, 3, 0},
			Sample{HasRegisters: true, Registers: Registers{PC: 3, SP: 2, FP: 1}},
		},
		"no registers":     {amd64, []uint64{0, 0}, Sample{}},
		"a 32-bit program": {amd64, []uint64{1, 1, 2, 3, 8, 5, 8}, Sample{}},
	} {
		for _, cgroup := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				want, words := c.want, with(sampleWords(miscUser, 1, contextUser, 0x10), c.more...)
				if cgroup {
					want.CgroupID, words = 77, with(words, 77)
				}
				want.User, want.Period = []uint64{0x10}, 1000
				d := decoder{registers: c.registers, cgroup: cgroup, maxStack: 127}
				var rec Record
				require.Equal(t, decoded, d.decode(words, &rec))
				require.Equal(t, want, rec.Sample)
			})
		}
	}
}

func TestDecodeUserStackThatMakesNoSense(t *testing.T) {
	registers, _ := registersOf("amd64")
	for name, more := range map[string][]uint64{
		"nothing":             {},
		"no size":             {0},
		"registers cut off":   {abi64, 1, 2, 3},
		"stack cut off":       {abi64, 1, 2, 3, 16, 1, 2},
		"size of half a word": {abi64, 1, 2, 3, 12, 1, 2, 8},
		"size of all memory":  {abi64, 1, 2, 3, 1 << 63, 1, 2, 8},
		"more than room":      {abi64, 1, 2, 3, 8, 1, 16},
	} {
		t.Run(name, func(t *testing.T) {
			d := decoder{registers: registers, maxStack: 127}
			var rec Record
			require.Equal(t, corrupt, d.decode(with(sampleWords(miscUser, 1, contextUser, 0x10), more...), &rec))
		})
	}
}

func TestUserStackSizes(t *testing.T) {
	for _, bytes := range []int{8, 16384, MaxUserStack} {
		_, err := userStackRegisters(bytes)
		require.NoError(t, err, bytes)
	}
	for _, bytes := range []int{4, 16385, MaxUserStack + 8} {
		_, err := userStackRegisters(bytes)
		require.Error(t, err, bytes)
	}
}
