// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"encoding/binary"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// message returns a netlink message.
func message(kind uint16, sequence uint32, body []byte) []byte {
	b := make([]byte, align(headerSize+len(body)))
	binary.NativeEndian.PutUint32(b, uint32(headerSize+len(body)))
	binary.NativeEndian.PutUint16(b[4:], kind)
	binary.NativeEndian.PutUint32(b[8:], sequence)
	copy(b[headerSize:], body)
	return b
}

func attribute(kind uint16, value []byte) []byte {
	b := make([]byte, align(attrHeader+len(value)))
	binary.NativeEndian.PutUint16(b, uint16(attrHeader+len(value)))
	binary.NativeEndian.PutUint16(b[2:], kind)
	copy(b[attrHeader:], value)
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

func TestTheEndOfADump(t *testing.T) {
	refused := make([]byte, 4)
	no := -int32(syscall.ENOENT)
	binary.NativeEndian.PutUint32(refused, uint32(no))
	for name, c := range map[string]struct {
		message []byte
		done    bool
		err     error
	}{
		"done":            {message(typeDone, 5, make([]byte, 4)), true, nil},
		"error":           {message(typeError, 5, refused), true, syscall.ENOENT},
		"acknowledged":    {message(typeError, 5, make([]byte, 4)), false, nil},
		"of another dump": {message(typeDone, 4, make([]byte, 4)), false, nil},
		"unix socket":     {message(typeFamily, 5, socketOf(1, nil)), false, nil},
		"short":           {message(typeFamily, 5, make([]byte, socketSize-1)), false, errMalformed},
		"length":          {[]byte{255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, false, errMalformed},
	} {
		d := decoder{protocol: TCP, sequence: 5}
		done, err := d.messages(c.message, func(*Socket) bool { t.Error("a socket", name); return true })
		require.Equal(t, c.done, done, name)
		require.ErrorIs(t, err, c.err, name)
	}
}

func FuzzMessages(f *testing.F) {
	f.Add(append(message(typeFamily, 5, socketOf(familyV4, make([]byte, sentInfo))), message(typeDone, 5, nil)...))
	f.Add(message(typeFamily, 5, socketOf(familyV6, make([]byte, leastInfo))))
	f.Add(message(typeError, 5, []byte{254, 255, 255, 255}))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := decoder{protocol: TCP, sequence: 5}
		visited := 0
		_, _ = d.messages(b, func(s *Socket) bool {
			visited++
			if s.TCP.Busy < 0 || s.TCP.ReceiverWindow < 0 || s.TCP.SendBuf < 0 || s.TCP.RTT < 0 {
				t.Error("a time below zero")
			}
			return true
		})
		if visited > len(b)/(headerSize+socketSize) {
			t.Errorf("%d sockets in %d bytes", visited, len(b))
		}
	})
}
