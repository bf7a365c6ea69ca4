// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package procfs reads /proc, one file of Go for each file of the kernel's.
//
// Every read is bounded in bytes or entries, because another process decides
// what most files hold. The parsers of files that are read often allocate
// nothing, so that a caller that keeps a file open can use them on its own buffer.
package procfs

import (
	"path/filepath"
	"strconv"
)

// An FS is the procfs below a root directory. It is safe for concurrent use.
type FS struct{ dir string }

// At returns the procfs of the host whose root is mounted at root; "" is "/".
func At(root string) FS {
	if root == "" {
		root = "/"
	}
	return FS{filepath.Join(root, "proc")}
}

// Path returns the path of a file of the procfs, or its own without elements.
func (fs FS) Path(elem ...string) string {
	return filepath.Join(append([]string{fs.dir}, elem...)...)
}

// Self stands for this process, whatever its pid in the procfs is.
const Self = 0

// File returns the path of a process's file.
func (fs FS) File(pid int, name string) string {
	if pid == Self {
		return fs.dir + "/self/" + name
	}
	return fs.dir + "/" + strconv.Itoa(pid) + "/" + name
}
