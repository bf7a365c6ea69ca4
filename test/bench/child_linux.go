// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// child is a process that is measured.
type child struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error // valid once done is closed
}

// start starts a child in its own process group, so that Ctrl-C reaches only bench. bench
// then stops its children in order.
func (b *bench) start(name string, cmd *exec.Cmd) (*child, error) {
	return b.startWith(name, cmd, nil)
}

// startWith starts a child whose standard output goes to a file of the caller.
func (b *bench) startWith(name string, cmd *exec.Cmd, out *os.File) (*child, error) {
	c := &child{name: name, cmd: cmd, log: filepath.Join(b.dir, name+".log"), done: make(chan struct{})}
	log, err := os.Create(c.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if out != nil {
		cmd.Stdout = out
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		c.err = cmd.Wait()
		close(c.done)
	}()
	return c, nil
}

// stop interrupts the child, and kills it if it does not end in time.
func (c *child) stop() error {
	_ = c.cmd.Process.Signal(os.Interrupt)
	select {
	case <-c.done:
		return nil
	case <-time.After(30 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.done
		return fmt.Errorf("%s did not end when asked to and was killed", c.name)
	}
}

// running returns an error with the end of the child's log if the child has ended.
func (c *child) running() error {
	select {
	case <-c.done:
		return errors.Join(fmt.Errorf("%s ended by itself; its last words:\n%s", c.name, c.lastWords()), c.err)
	default:
		return nil
	}
}

func (c *child) lastWords() string {
	text, _ := os.ReadFile(c.log)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// cpu returns the CPU time of all threads of the child, including ended threads. It reads
// the CPU clock of the process, which counts nanoseconds, because the CPU time in /proc is
// rounded to hundredths of a second.
func (c *child) cpu() (time.Duration, error) {
	const process = 2 // CPUCLOCK_SCHED of the whole process, as in MAKE_PROCESS_CPUCLOCK
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^c.cmd.Process.Pid<<3|process), &ts); err != nil {
		return 0, errors.Join(fmt.Errorf("read the CPU time of %s: %w", c.name, err), c.running())
	}
	return time.Duration(ts.Nano()), nil
}

// total returns the total CPU time of the child. The child must have ended.
func (c *child) total() time.Duration {
	return c.cmd.ProcessState.UserTime() + c.cmd.ProcessState.SystemTime()
}

// memory returns the child's current and maximum resident memory, in bytes.
func (c *child) memory() (now, peak int64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(status)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kib, _ := strconv.ParseInt(fields[1], 10, 64)
		switch fields[0] {
		case "VmRSS:":
			now = kib << 10
		case "VmHWM:":
			peak = kib << 10
		}
	}
	return now, peak, nil
}
