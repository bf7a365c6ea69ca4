// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// OnDisk runs the rest of a test in a child process that has its own mount namespace and
// its own disk of 1 MiB. In the child, OnDisk returns the directory of the disk. In the
// parent, OnDisk returns "", and the test must return.
func OnDisk(t testing.TB) string {
	t.Helper()
	const variable = "HOTPROFILE_TEST_DISK"
	if dir := os.Getenv(variable); dir != "" {
		if err := errors.Join(unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""), unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m")); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if os.Geteuid() != 0 && err != nil {
		SkipUnprivileged(t, "a mount namespace: %v", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	return ""
}
