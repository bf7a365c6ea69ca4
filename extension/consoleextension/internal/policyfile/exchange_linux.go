// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// exchange exchanges two files. It returns errors.ErrUnsupported if the file system cannot
// exchange files.
func exchange(a, b string) error {
	err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return errors.ErrUnsupported
	case err != nil:
		return &os.LinkError{Op: "exchange", Old: a, New: b, Err: err}
	}
	return nil
}

// maxAttributes is the maximum size of the list of a file's extended attributes,
// and of each value, in bytes.
const maxAttributes = 64 << 10

// copyAttributes copies the extended attributes of a file. The access control lists and
// the labels of a file are extended attributes.
func copyAttributes(from string, to *os.File) error {
	names, value := make([]byte, maxAttributes), make([]byte, maxAttributes)
	n, err := unix.Listxattr(from, names)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the extended attributes of %s: %w", from, err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		size, err := unix.Getxattr(from, name, value)
		if err == nil {
			err = unix.Fsetxattr(int(to.Fd()), name, value[:size], 0)
		}
		if err != nil {
			return fmt.Errorf("keep the extended attribute %s of %s: %w", name, from, err)
		}
	}
	return nil
}
