// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/windows"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// TestMain runs the tests, or the busy process that the tests start. For each line of its
// standard input, the busy process prints its CPU time according to Windows.
func TestMain(m *testing.M) {
	if os.Getenv("HOTPROFILE_TEST_BUSY") == "" {
		os.Exit(m.Run())
	}
	if os.Getenv("HOTPROFILE_TEST_BUSY") == "one CPU" {
		_, _, _ = windows.NewLazySystemDLL("kernel32.dll").NewProc("SetProcessAffinityMask").Call(uintptr(windows.CurrentProcess()), 1)
	}
	memory := make([]byte, 64<<20)
	for i := range memory {
		memory[i] = 1
	}
	go func() {
		for turns := 0; ; {
			turns++
		}
	}()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var created, exited, kernel, user windows.Filetime
		if err := windows.GetProcessTimes(windows.CurrentProcess(), &created, &exited, &kernel, &user); err != nil {
			panic(err)
		}
		ticks := func(f windows.Filetime) int64 { return int64(f.HighDateTime)<<32 + int64(f.LowDateTime) }
		fmt.Println((ticks(kernel) + ticks(user)) * 100)
	}
	fmt.Println(memory[0])
}

type busyProcess struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func busy(t *testing.T, how string) busyProcess {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HOTPROFILE_TEST_BUSY="+how)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	p := busyProcess{cmd, in, bufio.NewReader(out)}
	p.used(t) // the answer shows that the process is busy
	return p
}

// used returns the CPU time that the process reports about itself.
func (p busyProcess) used(t *testing.T) (used time.Duration) {
	_, err := fmt.Fprintln(p.in)
	require.NoError(t, err)
	_, err = fmt.Fscanln(p.out, &used)
	require.NoError(t, err)
	return used
}

func TestReadingsOfABusyProcessOfWindows(t *testing.T) {
	s, err := NewSource(nil, Options{})
	require.NoError(t, err)
	defer s.Close()
	for how, cpus := range map[string]int{"all CPUs": procfs.OnlineCPUs(), "one CPU": 1} {
		t.Run(how, func(t *testing.T) {
			p := busy(t, how)
			process, err := procfs.At("").Process(p.Process.Pid)
			require.NoError(t, err)
			names := []string{CPUUsage, CPUUtilization, HostCPUUtilization, CPUHostShare, MemoryUtilization, ThreadCount}
			w, err := s.Watch(cgroup.Group{}, process, names)
			require.NoError(t, err)
			defer w.Close()
			before, after := make([]Result, len(names)), make([]Result, len(names))
			at, own := time.Now(), p.used(t)
			w.Read(at, before)
			time.Sleep(3 * time.Second)
			now := time.Now()
			w.Read(now, after)
			own = p.used(t) - own
			delta := func(i int) (num, den float64) {
				require.NoError(t, before[i].Err, names[i])
				require.NoError(t, after[i].Err, names[i])
				return after[i].Reading.Num - before[i].Reading.Num, after[i].Reading.Den - before[i].Reading.Den
			}
			used, seconds := delta(0)
			t.Logf("%v by itself, %.3f s read", own, used)
			require.InEpsilon(t, own.Seconds(), used, 0.02)
			require.InEpsilon(t, now.Sub(at).Seconds(), seconds, 0.001)
			_, cores := delta(1)
			require.InEpsilon(t, float64(cpus)*seconds, cores, 0.001)
			require.InDelta(t, cpus, w.Capacity().Cores, 0)
			hostBusy, hostAll := delta(2)
			require.InEpsilon(t, float64(procfs.OnlineCPUs())*seconds, hostAll, 0.1)
			require.GreaterOrEqual(t, hostBusy, 0.9*used)
			_, hostCores := delta(3)
			require.InEpsilon(t, float64(procfs.OnlineCPUs())*seconds, hostCores, 0.001)
			require.GreaterOrEqual(t, after[4].Reading.Den, float64(64<<20))
			require.Positive(t, after[4].Reading.Num)
			require.Less(t, after[4].Reading.Num, 100.0)
			require.GreaterOrEqual(t, after[5].Reading.Num, 2.0)
		})
	}
}

func TestAProcessOfWindowsThatHasEndedIsGone(t *testing.T) {
	s, err := NewSource(nil, Options{})
	require.NoError(t, err)
	defer s.Close()
	p := busy(t, "all CPUs")
	process, err := procfs.At("").Process(p.Process.Pid)
	require.NoError(t, err)
	w, err := s.Watch(cgroup.Group{}, process, []string{CPUUtilization, ThreadCount})
	require.NoError(t, err)
	defer w.Close()
	require.NoError(t, p.Process.Kill())
	_ = p.Wait()
	results := make([]Result, 2)
	require.Eventually(t, func() bool {
		w.Read(time.Now(), results)
		return results[0].Err != nil && results[1].Err != nil
	}, time.Minute, 100*time.Millisecond)
	require.ErrorIs(t, results[0].Err, ErrGone)
	require.ErrorIs(t, results[1].Err, ErrGone)
	process.Start++ // another process now has the same pid
	_, err = s.Watch(cgroup.Group{}, process, []string{CPUUsage})
	require.ErrorIs(t, err, ErrGone)
}
