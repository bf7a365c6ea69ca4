// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package programtest runs the binary of a test as the program that the test samples.
package programtest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// Deadline is the maximum time that a test waits for something to happen.
const Deadline = 30 * time.Second

// modeVariable is the environment variable that selects the
// program that the binary runs as.
const modeVariable = "PERFEVENT_TEST_PROGRAM"

// Main runs the tests or the program that the environment selects. modes contains further
// programs by name. Each program returns an exit status.
func Main(m *testing.M, modes map[string]func() int) {
	switch name := os.Getenv(modeVariable); name {
	case "":
		goleak.VerifyTestMain(m)
	case "spin":
		Spin()
	case "obey":
		obey()
	default:
		os.Exit(modes[name]())
	}
	os.Exit(2)
}

// Env returns the environment that makes the test binary run as the given program.
func Env(mode string) []string { return append(os.Environ(), modeVariable+"="+mode) }

// Program is a process of the test binary that executes commands. Each command is one
// line, and each answer is one line.
type Program struct {
	t      testing.TB
	cmd    *exec.Cmd
	Stdin  io.WriteCloser
	stdout *bufio.Reader
}

// Start starts the program. The program is killed when the test ends.
func Start(t testing.TB) *Program {
	t.Helper()
	return StartCommand(t, exec.Command(Binary(t)))
}

// StartCommand is like Start, but with a command that runs Binary.
func StartCommand(t testing.TB, cmd *exec.Cmd) *Program {
	t.Helper()
	return StartMode(t, cmd, "obey")
}

// StartMode is like StartCommand, but for a program of another
// mode. The program must call Answer.
func StartMode(t testing.TB, cmd *exec.Cmd, mode string) *Program {
	t.Helper()
	cmd.Env = Env(mode)
	cmd.Stderr = os.Stderr
	p := &Program{t: t, cmd: cmd}
	var err error
	p.Stdin, err = cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	p.stdout = bufio.NewReader(stdout)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { p.Kill() })
	return p
}

// Binary returns the path of the test binary.
func Binary(t testing.TB) string {
	t.Helper()
	binary, err := os.Executable()
	require.NoError(t, err)
	return binary
}

// PID returns the program's pid.
func (p *Program) PID() int { return p.cmd.Process.Pid }

// Order sends an order to the program and returns the answer.
func (p *Program) Order(order string) string {
	p.t.Helper()
	_, err := fmt.Fprintln(p.Stdin, order)
	require.NoError(p.t, err)
	answer, err := p.stdout.ReadString('\n')
	require.NoError(p.t, err)
	return strings.TrimSpace(answer)
}

// Kill ends the program.
func (p *Program) Kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// OnOneCPU pins the test to the first CPU that it may use. Programs that are started
// later also run on this CPU.
func OnOneCPU(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	var before, one unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &before))
	for cpu := range 1024 {
		if before.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	require.NoError(t, unix.SchedSetaffinity(0, &one))
	t.Cleanup(func() {
		require.NoError(t, unix.SchedSetaffinity(0, &before))
		runtime.UnlockOSThread()
	})
}

// Spin never returns.
//
//go:noinline
func Spin() {
	for n := 0; ; n++ {
		runtime.KeepAlive(n)
	}
}

// Answer calls answer with each command from standard input and prints the result. It
// returns at the end of the input.
func Answer(answer func(order string) string) {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(answer(lines.Text()))
	}
}

// obey executes orders until the end of its input.
func obey() {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		switch lines.Text() {
		case "pid":
			fmt.Println(os.Getpid())
		case "thread": // starts a thread that spins and prints its id
			tid := make(chan int)
			go func() {
				runtime.LockOSThread()
				tid <- unix.Gettid()
				Spin()
			}()
			fmt.Println(<-tid)
		case "threads": // starts many threads after the answer
			fmt.Println("ok")
			go func() {
				for range 30 {
					go func() {
						runtime.LockOSThread()
						Spin()
					}()
					time.Sleep(time.Millisecond)
				}
			}()
		case "fork": // starts a child that spins and prints its pid
			child := exec.Command("/proc/self/exe")
			child.Env = Env("spin")
			child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if err := child.Start(); err != nil {
				fmt.Println(err)
				continue
			}
			fmt.Println(child.Process.Pid)
		case "exec": // becomes a program that spins
			fmt.Println("ok")
			_ = os.Setenv(modeVariable, "spin")
			_ = syscall.Exec("/proc/self/exe", []string{"spinner"}, os.Environ())
		case "kernel": // spends time in the kernel
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
