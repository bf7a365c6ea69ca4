// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hosttest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// CPU is a CPU that can be taken offline.
type CPU struct {
	Number int
	file   string
	// guard is a process that brings the CPU back online when its input is closed. The input
	// is also closed if the test process ends for any reason.
	guard *exec.Cmd
	hold  io.Closer
	back  *time.Timer
}

// mostOffline is the maximum time for which the CPU is offline, even if the test hangs.
const mostOffline = 20 * time.Second

// HotplugCPU returns a CPU that can be taken offline. This disturbs everything on the
// machine, so the test is skipped unless HOTPROFILE_HOTPLUG is 1. The CPU is always back
// online when the test ends.
func HotplugCPU(t testing.TB) *CPU {
	t.Helper()
	if os.Getenv("HOTPROFILE_HOTPLUG") != "1" {
		t.Skip("HOTPROFILE_HOTPLUG=1 allows to take a CPU of this machine offline")
	}
	for n := 1; n < 8; n++ { // CPU 0 usually cannot be taken offline
		file := fmt.Sprintf("/sys/devices/system/cpu/cpu%d/online", n)
		if text, err := os.ReadFile(file); err != nil || string(text) != "1\n" {
			continue
		}
		c := &CPU{Number: n, file: file}
		t.Cleanup(func() { c.Online(t) })
		return c
	}
	SkipUnprivileged(t, "no CPU can be taken offline")
	return nil
}

// Offline takes the CPU offline for at most 20 seconds.
func (c *CPU) Offline(t testing.TB) {
	t.Helper()
	c.guard = exec.Command("/bin/sh", "-c", `read _; echo 1 > "$0"`, c.file)
	c.guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // protects the guard from signals to the test's process group
	hold, err := c.guard.StdinPipe()
	if err == nil {
		err = c.guard.Start()
	}
	if err != nil {
		c.guard = nil
		t.Fatal(err)
	}
	c.hold = hold
	c.back = time.AfterFunc(mostOffline, func() { _ = hold.Close() })
	if err := os.WriteFile(c.file, []byte("0"), 0); err != nil {
		SkipUnprivileged(t, "%v", err)
	}
}

// Online brings the CPU back online.
func (c *CPU) Online(t testing.TB) {
	t.Helper()
	if c.guard == nil {
		return
	}
	c.back.Stop()
	_ = c.hold.Close()
	if err := c.guard.Wait(); err != nil {
		t.Errorf("bringing CPU %d back: %v", c.Number, err)
	}
	c.guard = nil
}
