// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Stall mounts a file system over a directory. The file system does not
// answer any request, like a failed disk. answer unmounts the file system,
// which makes all waiting calls fail.
func Stall(dir string) (answer func() error, err error) {
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/fuse: %w", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other", device)
	if err := unix.Mount("stalled", dir, "fuse", 0, options); err != nil {
		return nil, errors.Join(fmt.Errorf("mount over %s: %w", dir, err), unix.Close(device))
	}
	return func() error {
		return errors.Join(unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH), unix.Close(device))
	}, nil
}
