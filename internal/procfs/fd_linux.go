// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package procfs

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// OpenPath opens for reading the file of an O_PATH descriptor of this process,
// which stays open. Check before that it is a regular file: to open a device or
// a FIFO already does something. name is for the file's errors.
func OpenPath(fd int, name string) (*os.File, error) {
	file, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(file), name), nil
}
