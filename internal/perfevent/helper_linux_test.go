// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// helper is the test binary as a program that does what it is told, line by
// line, and answers each line with one.
type helper struct {
	t      testing.TB
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
}

func startHelper(t testing.TB, cmd *exec.Cmd) *helper {
	t.Helper()
	cmd.Env = append(os.Environ(), helperVariable+"=obey")
	cmd.Stderr = os.Stderr
	h := &helper{t: t, cmd: cmd}
	var err error
	h.stdin, err = cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	h.stdout = bufio.NewReader(stdout)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { h.kill() })
	return h
}

func newHelper(t testing.TB) *helper {
	t.Helper()
	return startHelper(t, exec.Command(testBinary(t)))
}

func testBinary(t testing.TB) string {
	t.Helper()
	binary, err := os.Executable()
	require.NoError(t, err)
	return binary
}

func (h *helper) pid() int { return h.cmd.Process.Pid }

// tell gives an order and returns the answer.
func (h *helper) tell(order string) string {
	h.t.Helper()
	_, err := fmt.Fprintln(h.stdin, order)
	require.NoError(h.t, err)
	answer, err := h.stdout.ReadString('\n')
	require.NoError(h.t, err)
	return strings.TrimSpace(answer)
}

// kill ends the helper and returns the CPU time it took.
func (h *helper) kill() time.Duration {
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
	return h.cmd.ProcessState.UserTime() + h.cmd.ProcessState.SystemTime()
}

func runHelper(name string) int {
	switch name {
	case "spin":
		spin()
	case "obey":
		obey()
	case "unprivileged":
		return unprivileged()
	}
	return 2
}

//go:noinline
func spin() {
	for n := 0; ; n++ {
		runtime.KeepAlive(n)
	}
}

func obey() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		switch lines.Text() {
		case "pid":
			fmt.Println(os.Getpid())
		case "thread": // its id
			tid := make(chan int)
			go func() {
				runtime.LockOSThread()
				tid <- unix.Gettid()
				spin()
			}()
			fmt.Println(<-tid)
		case "threads": // many, while the answer is out already
			fmt.Println("ok")
			go func() {
				for range 30 {
					go func() {
						runtime.LockOSThread()
						spin()
					}()
					time.Sleep(time.Millisecond)
				}
			}()
		case "fork": // a child that spins, its pid
			child := exec.Command("/proc/self/exe")
			child.Env = append(os.Environ(), helperVariable+"=spin")
			child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if err := child.Start(); err != nil {
				fmt.Println(err)
				continue
			}
			fmt.Println(child.Process.Pid)
		case "exec": // become a program that spins
			fmt.Println("ok")
			_ = os.Setenv(helperVariable, "spin")
			_ = syscall.Exec("/proc/self/exe", []string{"spinner"}, os.Environ())
		case "kernel": // spend time in the kernel
			fmt.Println("ok")
			go func() {
				zero, _ := os.Open("/dev/zero")
				for b := make([]byte, 1<<20); ; {
					_, _ = zero.Read(b)
				}
			}()
		}
	}
}

// unprivileged reports what a process without any right may do, in lines of
// "name: outcome".
func unprivileged() int {
	say := func(name string, err error) { fmt.Printf("%s: %v\n", name, err) }
	r := Probe()
	say("own", r.Own)
	say("host", r.HostWide)
	say("kernel", r.Kernel)
	if _, err := Open(Options{HostWide: true}); err != nil {
		say("open host", err)
	}
	s, err := Open(Options{SampleRing: 256 << 20})
	say("open own", err)
	if err != nil {
		return 0
	}
	_, err = s.AttachProcess(1)
	say("attach init", err)
	_, err = s.AttachHost()
	say("attach host", err)
	attachment, err := s.AttachProcess(os.Getpid())
	say("attach own", err)
	if err != nil {
		return 0
	}
	go spin()
	var rec Record
	for n := 0; n < 20; {
		if err := s.Wait(time.Second); err != nil {
			say("wait", err)
			return 1
		}
		for s.Read(&rec) {
			if rec.Type == TypeSample && rec.Attachment == attachment && len(rec.Sample.User) > 0 && len(rec.Sample.Kernel) == 0 {
				n++
			}
		}
	}
	fmt.Println("sampled: true")
	say("close", s.Close())
	return 0
}

// exposedBinary is a copy of the test binary that every user may run.
func exposedBinary(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(testBinary(t))
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "perfevent")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "helper")
	require.NoError(t, os.WriteFile(path, data, 0o755))
	return path
}
