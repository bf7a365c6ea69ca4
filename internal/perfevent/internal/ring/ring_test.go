// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLossIsPendingUntilALaterRecordIsRead covers the reports of lost records. The kernel
// reports a loss with the next record that fits. A record that was written before the
// reader freed space therefore does not report later losses.
func TestLossIsPendingUntilALaterRecordIsRead(t *testing.T) {
	var head, tail uint64
	data := make([]uint64, 16)
	for i := range data {
		binary.NativeEndian.PutUint16(Bytes(data[i : i+1])[6:], WordSize) // a header with the size of the record
	}
	r := New(&head, &tail, data)
	read := func() {
		for !r.Empty() {
			_, ok := r.Peek()
			require.True(t, ok)
			r.Skip()
		}
		r.Release()
	}
	round := func(written uint64) {
		head += written * WordSize
		r.Begin()
		read()
	}
	round(8)
	require.False(t, r.LossPending(), "there was room")

	head += 14 * WordSize
	r.Begin()
	head += WordSize // this record fits, but others do not
	read()
	require.True(t, r.LossPending())
	round(0)
	require.True(t, r.LossPending(), "that one was read, and none after it")
	round(1)
	require.False(t, r.LossPending())

	round(14)
	for range maxWaits {
		require.True(t, r.LossPending())
	}
	require.False(t, r.LossPending(), "the CPU may be idle")
}
