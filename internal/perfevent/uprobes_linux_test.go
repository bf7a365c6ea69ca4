// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/hosttest"
)

// probed is what the tests place probes in.
//
//go:noinline
func probed(first, second, third int) int { return first + second + third }

// thirdArgument is its register, as the kernel numbers it.
const thirdArgument = 2

// offsetOf is where a function of this program is in its file.
func offsetOf(t testing.TB, function any) uint64 {
	t.Helper()
	pc := uint64(reflect.ValueOf(function).Pointer())
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		var start, limit, offset uint64
		var permissions string
		_, err := fmt.Sscanf(line, "%x-%x %s %x", &start, &limit, &permissions, &offset)
		require.NoError(t, err)
		if pc >= start && pc < limit {
			return pc - start + offset
		}
	}
	t.Fatal("the function is nowhere")
	return 0
}

func openUprobes(t testing.TB, o UprobeOptions) *Uprobes {
	t.Helper()
	if _, known := map[string]bool{"amd64": true, "arm64": true}[runtime.GOARCH]; !known {
		t.Skip("the register of the third argument is not known here")
	}
	u, err := OpenUprobes(o)
	if err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	t.Cleanup(func() { require.NoError(t, u.Close()) })
	return u
}

func attachProbed(t testing.TB, u *Uprobes) *Uprobe {
	t.Helper()
	f, err := os.Open("/proc/self/exe")
	require.NoError(t, err)
	defer f.Close()
	p, err := u.Attach(f, offsetOf(t, probed), thirdArgument)
	require.NoError(t, err)
	return p
}

// hits reads what is there.
func hits(u *Uprobes, from *Uprobe) (values []uint64) {
	var rec UprobeRecord
	for u.Read(&rec) {
		if rec.Type == TypeSample && rec.Uprobe == from && rec.PID == os.Getpid() && rec.Valued {
			values = append(values, rec.Value)
		}
	}
	return values
}

func TestUprobeTellsWhatItsRegisterHeld(t *testing.T) {
	u := openUprobes(t, UprobeOptions{})
	p := attachProbed(t, u)
	for i := range 100 {
		_ = probed(1, 2, i+1000)
	}
	var got []uint64
	require.Eventually(t, func() bool {
		got = append(got, hits(u, p)...)
		return len(got) == 100
	}, deadline, time.Millisecond)
	for i, v := range got {
		require.EqualValues(t, i+1000, v)
	}
	require.Zero(t, u.Stats())
}

func TestStackOfAHitStartsAtTheProbe(t *testing.T) {
	u := openUprobes(t, UprobeOptions{})
	p := attachProbed(t, u)
	_ = probed(1, 2, 3)
	var rec UprobeRecord
	found := false
	require.Eventually(t, func() bool {
		for u.Read(&rec) {
			if rec.Type == TypeSample && rec.Uprobe == p {
				found = true
				break
			}
		}
		return found
	}, deadline, time.Millisecond)
	require.Empty(t, rec.Sample.Kernel)
	require.Equal(t, "github.com/hotprofile/hotprofile/internal/perfevent.probed", runtime.FuncForPC(uintptr(rec.Sample.User[0])).Name())
	names := ""
	for _, pc := range rec.Sample.User[1:] {
		names += runtime.FuncForPC(uintptr(pc)-1).Name() + " "
	}
	require.Contains(t, names, "testing.tRunner")
	require.Equal(t, unix.Getpid(), rec.PID)
}

func TestUprobeIsTakenAway(t *testing.T) {
	u := openUprobes(t, UprobeOptions{})
	rings := u.Descriptors()
	require.Equal(t, len(u.CPUs()), rings)
	p, q := attachProbed(t, u), attachProbed(t, u) // of one place, each heard by itself
	require.Equal(t, 3*rings, u.Descriptors())
	_ = probed(1, 2, 3)
	require.NoError(t, p.Detach())
	require.NoError(t, p.Detach())
	_ = probed(1, 2, 4)
	require.Equal(t, 2*rings, u.Descriptors())
	var values []uint64
	require.Eventually(t, func() bool {
		values = append(values, hits(u, q)...)
		return len(values) >= 2
	}, deadline, time.Millisecond)
	require.Equal(t, []uint64{3, 4}, values)
	require.NoError(t, u.Close())
	_, err := u.Attach(os.Stdin, 0, thirdArgument)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorIs(t, u.Wait(0), os.ErrClosed)
	require.False(t, u.Read(&UprobeRecord{}))
}

func TestUprobeBeyondTheLimitIsRefusedWhole(t *testing.T) {
	cpus, err := OnlineCPUs()
	require.NoError(t, err)
	u := openUprobes(t, UprobeOptions{MaxDescriptors: 2*len(cpus) - 1})
	f, err := os.Open("/proc/self/exe")
	require.NoError(t, err)
	defer f.Close()
	_, err = u.Attach(f, offsetOf(t, probed), thirdArgument)
	var limit *LimitError
	require.ErrorAs(t, err, &limit)
	require.Equal(t, len(cpus), u.Descriptors())
}

func TestUprobeThatCannotBePlacedLeavesNothing(t *testing.T) {
	u := openUprobes(t, UprobeOptions{})
	for name, path := range map[string]string{"a file of procfs": "/proc/self/status", "a device": "/dev/null"} {
		f, err := os.Open(path)
		require.NoError(t, err)
		_, err = u.Attach(f, 0, thirdArgument)
		require.Error(t, err, name)
		require.NoError(t, f.Close())
	}
	require.Equal(t, len(u.CPUs()), u.Descriptors())
}

func TestRecordsThatFindNoRoomAreCounted(t *testing.T) {
	u := openUprobes(t, UprobeOptions{Ring: os.Getpagesize()})
	p := attachProbed(t, u)
	onOneCPU(t) // the kernel tells of a loss with the next record of that CPU
	for range 1000 {
		_ = probed(1, 2, 3)
	}
	read := len(hits(u, p))
	for end := time.Now().Add(deadline); u.Stats().Lost == 0; {
		require.True(t, time.Now().Before(end), "no loss is told of")
		_ = probed(1, 2, 3)
		read += len(hits(u, p))
	}
	require.Less(t, read, 1000)
}

// onOneCPU keeps the test on the CPU that it may use with the lowest number.
func onOneCPU(t *testing.T) {
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

func BenchmarkUprobe(b *testing.B) {
	b.Run("baseline=without", func(b *testing.B) {
		for b.Loop() {
			_ = probed(1, 2, 3)
		}
	})
	b.Run("hit", func(b *testing.B) {
		u := openUprobes(b, UprobeOptions{Ring: 4 << 20})
		attachProbed(b, u)
		for b.Loop() {
			_ = probed(1, 2, 3)
		}
	})
	b.Run("read", func(b *testing.B) {
		u := openUprobes(b, UprobeOptions{Ring: 4 << 20})
		attachProbed(b, u)
		var rec UprobeRecord
		b.ReportAllocs()
		for b.Loop() {
			if !u.Read(&rec) {
				b.StopTimer()
				for range 1000 {
					_ = probed(1, 2, 3)
				}
				b.StartTimer()
			}
		}
	})
}
