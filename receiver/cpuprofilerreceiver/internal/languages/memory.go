// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

import (
	"encoding/binary"
	"io"
)

const (
	pageSize = 4096
	slots    = 256 // a power of two
	// maxReads is the maximum number of system calls in one walk. A system
	// call takes a few microseconds.
	maxReads = 2048
)

// memory reads the memory of one process at a time, page by page. A page that was read
// since the last call of begin is not read again.
type memory struct {
	pid   int
	reads int
	// page is the page number in each slot. turn is the number of the walk that read the
	// page.
	page [slots]uint64
	turn [slots]uint64
	walk uint64
	data [slots][pageSize]byte
	// fetch is Config.Read.
	fetch func(pid int, address uint64, b []byte) int
	spare [1024]byte
	large []byte
}

// begin starts a walk in a process.
func (m *memory) begin(pid int) {
	m.pid, m.reads = pid, 0
	m.walk++
}

// again makes the next access read the page of an address again.
func (m *memory) again(address uint64) { m.turn[address/pageSize%slots] = 0 }

// load returns the page with the given number, or nil if the page cannot be read.
func (m *memory) load(number uint64) *[pageSize]byte {
	slot := number % slots
	if m.turn[slot] == m.walk && m.page[slot] == number {
		return &m.data[slot]
	}
	if m.reads >= maxReads || number == 0 {
		return nil
	}
	m.reads++
	m.turn[slot] = 0
	if m.fetch(m.pid, number*pageSize, m.data[slot][:]) != pageSize {
		return nil
	}
	m.page[slot], m.turn[slot] = number, m.walk
	return &m.data[slot]
}

// bytes returns n bytes, or nil if they cannot be read. The result is valid until the next
// call.
func (m *memory) bytes(address uint64, n int) []byte {
	page := m.load(address / pageSize)
	if page == nil || n > len(m.spare) {
		return nil
	}
	from := int(address % pageSize)
	if from+n <= pageSize {
		return page[from : from+n]
	}
	first := copy(m.spare[:], page[from:])
	if page = m.load(address/pageSize + 1); page == nil {
		return nil
	}
	copy(m.spare[first:], page[:])
	return m.spare[:n]
}

// word reads 8 bytes.
func (m *memory) word(address uint64) (uint64, bool) {
	b := m.bytes(address, 8)
	if b == nil {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b), true
}

// block reads up to n bytes with one system call, and does not use the cached pages. The
// result is valid until the next call.
func (m *memory) block(address uint64, n int) []byte {
	if m.reads >= maxReads {
		return nil
	}
	m.reads++
	if n > cap(m.large) {
		m.large = make([]byte, n)
	}
	b := m.large[:n]
	return b[:m.fetch(m.pid, address, b)]
}

// remote is the memory of a process as an io.ReaderAt.
type remote struct{ pid int }

// ReadAt implements io.ReaderAt.
func (r remote) ReadAt(b []byte, address int64) (int, error) {
	if n := ReadMemory(r.pid, uint64(address), b); n < len(b) {
		return n, io.ErrUnexpectedEOF
	}
	return len(b), nil
}
