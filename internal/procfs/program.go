// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
)

// Root identifies the root directory of a process by its mount namespace and the
// directory's path in this namespace. The result is never 0. Unlike stat, Root does not
// access the file system, which might hang.
func (fs FS) Root(pid int) (uint64, error) { return fs.rootNamedBy(pid, fs.File(pid, "root")) }

// rootNamedBy returns the result of [FS.Root] for a process whose root directory
// is the target of a kernel link.
func (fs FS) rootNamedBy(pid int, link string) (uint64, error) {
	dir, err := os.Readlink(link)
	if err != nil {
		return 0, err
	}
	namespace, err := os.Readlink(fs.File(pid, "ns/mnt"))
	if err != nil {
		return 0, err
	}
	// The process chooses the directory's name, so it must not be able to find two names
	// with the same hash.
	sum := sha256.Sum256([]byte(namespace + "\x00" + dir))
	return max(1, binary.NativeEndian.Uint64(sum[:])), nil
}

// maxAuxv is the maximum number of bytes read from an auxv file. The file is usually about
// 350 bytes long.
const maxAuxv = 16 << 10

// EntryPoint returns the address at which a process's program started, which
// is AT_ENTRY in /proc/PID/auxv.
func (fs FS) EntryPoint(pid int) (uint64, error) {
	path := fs.File(pid, "auxv")
	b, err := ReadFile(path, maxAuxv)
	if err != nil {
		return 0, err
	}
	if entry, ok := parseAuxv(b); ok {
		return entry, nil
	}
	return 0, fmt.Errorf("%s has no entry point", path)
}

// parseAuxv returns AT_ENTRY of a 64-bit process.
func parseAuxv(b []byte) (entry uint64, ok bool) {
	const pair, atNull, atEntry = 16, 0, 9
	for ; len(b) >= pair; b = b[pair:] {
		switch binary.NativeEndian.Uint64(b) {
		case atNull:
			return 0, false
		case atEntry:
			return binary.NativeEndian.Uint64(b[8:]), true
		}
	}
	return 0, false
}

// ReadMemory reads len(b) bytes of a process's memory.
func (fs FS) ReadMemory(pid int, b []byte, address uint64) error {
	mem, err := os.Open(fs.File(pid, "mem"))
	if err != nil {
		return err
	}
	defer mem.Close()
	_, err = mem.ReadAt(b, int64(address))
	return err
}

// MaxEnviron is the maximum number of bytes read from an environ file. The
// kernel's usual limit is 2 MiB.
const MaxEnviron = 128 << 10

// Getenv returns the value of a variable in the content of /proc/PID/environ. If a variable
// is set twice, the first value counts, as for getenv(3).
func Getenv(environ []byte, name string) (value []byte, ok bool) {
	for len(environ) > 0 {
		var variable []byte
		variable, environ, _ = bytes.Cut(environ, []byte{0})
		if len(variable) > len(name) && variable[len(name)] == '=' && string(variable[:len(name)]) == name {
			return variable[len(name)+1:], true
		}
	}
	return nil, false
}
