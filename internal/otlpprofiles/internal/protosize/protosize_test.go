// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package protosize

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
)

func TestSizesAreThoseOfProtobuf(t *testing.T) {
	tag := protowire.SizeTag(15)
	for _, v := range []uint64{1, 127, 128, 1<<14 - 1, 1 << 14, 1<<28 - 1, 1<<63 - 1, math.MaxUint64} {
		require.Equal(t, protowire.SizeVarint(v), Varint(v), v)
		require.Equal(t, tag+protowire.SizeVarint(v), Number(v), v)
		require.LessOrEqual(t, Number(v), MaxNumber)
	}
	require.Equal(t, 1, Varint(0))
	require.Zero(t, Number(0), "omitted")
	for _, n := range []int{0, 1, 127, 128, 1<<28 - 1} {
		require.Equal(t, tag+protowire.SizeBytes(n), Bytes(n), n)
		require.LessOrEqual(t, Bytes(n)-n, MaxLength)
		if n > 0 {
			require.Equal(t, Bytes(n), Packed(n))
		}
	}
	require.Zero(t, Packed(0), "omitted")
	require.LessOrEqual(t, Number(1<<28-1), MaxIndex)
}
