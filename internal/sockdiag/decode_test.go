// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

func attribute(kind uint16, value []byte) []byte {
	b := make([]byte, 4+(len(value)+3)&^3)
	binary.NativeEndian.PutUint16(b, uint16(4+len(value)))
	binary.NativeEndian.PutUint16(b[2:], kind)
	copy(b[4:], value)
	return b
}

func socketOf(family byte, info []byte) []byte {
	b := make([]byte, socketSize)
	b[0], b[1] = family, byte(Established)
	return append(b, attribute(attrInfo, info)...)
}

func TestOldKernelsTellLess(t *testing.T) {
	info := make([]byte, sentInfo)
	binary.NativeEndian.PutUint64(info[120:], 7)
	binary.NativeEndian.PutUint64(info[200:], 30)
	binary.NativeEndian.PutUint64(info[208:], 10)
	for length, want := range map[int]struct {
		ok   bool
		sent uint64
	}{sentInfo: {true, 20}, sentInfo - 1: {true, 7}, leastInfo: {true, 7}, leastInfo - 1: {false, 0}, 0: {false, 0}} {
		got, ok := decodeTCP(info[:length])
		require.Equal(t, want.ok, ok, length)
		require.Equal(t, want.sent, got.Sent, length)
	}
}

func TestSocketsThatAreNotReadable(t *testing.T) {
	whole := socketOf(familyV4, make([]byte, sentInfo))
	long := append(socketOf(familyV4, nil), 255, 0, attrInfo, 0)
	for name, c := range map[string]struct {
		message []byte
		ok      bool
		err     error
	}{
		"whole":          {whole, true, nil},
		"unix socket":    {socketOf(1, nil), false, nil},
		"short":          {whole[:socketSize-1], false, errMalformed},
		"long attribute": {long, false, errMalformed},
	} {
		var s Socket
		ok, err := s.decode(c.message, TCP)
		require.Equal(t, c.ok, ok, name)
		require.ErrorIs(t, err, c.err, name)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(socketOf(familyV4, make([]byte, sentInfo)))
	f.Add(socketOf(familyV6, make([]byte, leastInfo)))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Socket
		_, _ = s.decode(b, TCP)
		if s.TCP.Busy < 0 || s.TCP.ReceiverWindow < 0 || s.TCP.SendBuf < 0 || s.TCP.RTT < 0 {
			t.Error("a time below zero")
		}
	})
}
