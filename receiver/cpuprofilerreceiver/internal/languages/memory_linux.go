// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

import "golang.org/x/sys/unix"

// ReadMemory reads the memory of a process and returns the number of bytes read. It stops
// at the first page that is not mapped.
func ReadMemory(pid int, address uint64, b []byte) int {
	if len(b) == 0 || address >= 1<<47 {
		return 0
	}
	n, err := unix.ProcessVMReadv(pid,
		[]unix.Iovec{{Base: &b[0], Len: uint64(len(b))}},
		[]unix.RemoteIovec{{Base: uintptr(address), Len: len(b)}}, 0)
	if err != nil {
		return 0
	}
	return n
}
