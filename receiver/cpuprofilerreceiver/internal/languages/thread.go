// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

import (
	"bytes"
	"encoding/binary"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

const (
	// maxStack is the maximum distance in bytes that is searched from the stack pointer
	// to the thread's control block. maxSearched is the maximum number of bytes that are
	// searched for the control block of a process's first thread.
	maxStack    = 64 << 20
	maxSearched = 16 << 20
	searched    = 64 << 10
	// blockAlign is the minimum alignment of a control block.
	blockAlign = 16
)

// findThread finds the thread pointer of the current thread, because samples do not
// contain it. With glibc on amd64, the thread pointer is the address of the thread's
// control block. The first and the third word of the control block are its own address.
// The thread's id is at the given offset. The block is at the top of the thread's stack.
// The block of the first thread is in a small mapping near the loader instead.
func (w *walk) findThread(offset uint64) *thread {
	p := w.process
	t := &thread{id: uint32(w.tid), checked: w.now}
	if p.own == 0 {
		p.own = p.pid
		if s, err := procfs.At(w.root).Status(p.pid); err == nil {
			p.own = s.PID
		}
	}
	if p.own != p.pid {
		if s, err := procfs.At(w.root).Status(w.tid); err == nil {
			t.id = uint32(s.PID)
		}
	}
	if w.tid != p.pid {
		at, n := w.sp&^(pageSize-1), 2*pageSize
		for to := at + maxStack; at < to && t.pointer == 0; n = min(2*n, searched) {
			b := w.memory.block(at, n)
			w.searchBlock(t, b, at, offset)
			if len(b) < n {
				break
			}
			at += uint64(n) - blockAlign*2 // a block may cross the boundary
		}
		return t
	}
	maps, err := procfs.ReadFile(procfs.At(w.root).File(p.pid, "maps"), procfs.MaxMaps)
	if err != nil {
		return t
	}
	left := uint64(maxSearched)
	for line := range bytes.Lines(maps) {
		m, ok := procfs.ParseMapping(line)
		anonymous := len(m.Path) == 0 && string(m.Perms[:]) == "rw-p"
		if !ok || !anonymous || m.Limit-m.Start > min(left, 1<<20) || t.pointer != 0 {
			continue
		}
		left -= m.Limit - m.Start
		w.searchBlock(t, w.memory.block(m.Start, int(m.Limit-m.Start)), m.Start, offset)
	}
	return t
}

// searchBlock searches memory for a thread's control block.
func (w *walk) searchBlock(t *thread, b []byte, at, offset uint64) {
	for i := 0; i+24 <= len(b) && t.pointer == 0; i += blockAlign {
		self := at + uint64(i)
		if binary.LittleEndian.Uint64(b[i:]) != self || binary.LittleEndian.Uint64(b[i+16:]) != self {
			continue
		}
		if t.pointer = self; !w.isThread(t, offset) {
			t.pointer = 0
		}
	}
}

// isThread reports whether t.pointer is the address of the thread's control block.
func (w *walk) isThread(t *thread, offset uint64) bool {
	self, ok := w.memory.word(t.pointer)
	b := w.memory.bytes(t.pointer+offset, 4)
	return ok && self == t.pointer && b != nil && binary.LittleEndian.Uint32(b) == t.id
}
