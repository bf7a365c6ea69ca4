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

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/record"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
	"github.com/hotprofile/hotprofile/test/programtest"
)

// probed is the function on which the tests set probes.
//
//go:noinline
func probed(first, second, third int) int { return first + second + third }

// offsetOf returns the file offset of a function of this program.
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
	t.Fatal("the function is in no mapping")
	return 0
}

func openProbes(t testing.TB, o Options) *Session {
	t.Helper()
	if _, err := record.RegistersFor(0); err != nil {
		t.Skip(err)
	}
	o.HostWide, o.Probes = true, true
	return open(t, o)
}

func attachProbed(t testing.TB, s *Session) *Attachment {
	t.Helper()
	f, err := os.Open("/proc/self/exe")
	require.NoError(t, err)
	defer f.Close()
	return attached(t)(s.AttachProbe(f, offsetOf(t, probed)))
}

// probeHits returns the third argument of each hit so far.
func probeHits(s *Session, from *Attachment) (values []uint64) {
	var rec Record
	for s.Read(&rec) {
		if rec.Type == TypeSample && rec.Attachment == from && rec.PID == os.Getpid() && rec.Sample.HasRegisters {
			values = append(values, rec.Sample.Registers.Third)
		}
	}
	return values
}

func TestHitOfAProbeHasRegisters(t *testing.T) {
	u := openProbes(t, Options{})
	p := attachProbed(t, u)
	for i := range 100 {
		_ = probed(1, 2, i+1000)
	}
	var got []uint64
	require.Eventually(t, func() bool {
		got = append(got, probeHits(u, p)...)
		return len(got) == 100
	}, programtest.Deadline, time.Millisecond)
	for i, v := range got {
		require.EqualValues(t, i+1000, v)
	}
	require.Zero(t, u.Stats())
}

func TestStackOfAHitStartsAtTheProbe(t *testing.T) {
	u := openProbes(t, Options{})
	p := attachProbed(t, u)
	_ = probed(1, 2, 3)
	var rec Record
	found := false
	require.Eventually(t, func() bool {
		for u.Read(&rec) {
			if rec.Type == TypeSample && rec.Attachment == p {
				found = true
				break
			}
		}
		return found
	}, programtest.Deadline, time.Millisecond)
	require.Empty(t, rec.Sample.Kernel)
	require.Equal(t, "github.com/hotprofile/hotprofile/internal/perfevent.probed", runtime.FuncForPC(uintptr(rec.Sample.User[0])).Name())
	names := ""
	for _, pc := range rec.Sample.User[1:] {
		names += runtime.FuncForPC(uintptr(pc)-1).Name() + " "
	}
	require.Contains(t, names, "testing.tRunner")
	require.Equal(t, unix.Getpid(), rec.PID)
}

func TestDetachedProbeIsNotHit(t *testing.T) {
	u := openProbes(t, Options{})
	rings := u.used()
	require.Equal(t, 2*len(u.CPUs()), rings)
	p, q := attachProbed(t, u), attachProbed(t, u) // two attachments at the same place record separately
	require.Equal(t, 2*rings, u.used())
	_ = probed(1, 2, 3)
	require.NoError(t, p.Detach())
	require.NoError(t, p.Detach())
	_ = probed(1, 2, 4)
	require.Equal(t, 3*rings/2, u.used())
	var values []uint64
	require.Eventually(t, func() bool {
		values = append(values, probeHits(u, q)...)
		return len(values) >= 2
	}, programtest.Deadline, time.Millisecond)
	require.Equal(t, []uint64{3, 4}, values)
	require.NoError(t, u.Close())
	_, err := u.AttachProbe(os.Stdin, 0)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorIs(t, u.Wait(0), os.ErrClosed)
	require.False(t, u.Read(&Record{}))
}

func TestDescriptorsOfProbesAreBounded(t *testing.T) {
	cpus, err := sys.OnlineCPUs()
	require.NoError(t, err)
	u := openProbes(t, Options{MaxDescriptors: 3*len(cpus) - 1})
	f, err := os.Open("/proc/self/exe")
	require.NoError(t, err)
	defer f.Close()
	_, err = u.AttachProbe(f, offsetOf(t, probed))
	var limit *LimitError
	require.ErrorAs(t, err, &limit)
	require.Equal(t, 2*len(cpus), u.used(), "its rings")
}

func TestProbeThatCannotBePlacedLeavesNothing(t *testing.T) {
	u := openProbes(t, Options{})
	for name, path := range map[string]string{"a file of procfs": "/proc/self/status", "a device": "/dev/null"} {
		f, err := os.Open(path)
		require.NoError(t, err)
		_, err = u.AttachProbe(f, 0)
		require.Error(t, err, name)
		require.NoError(t, f.Close())
	}
	require.Equal(t, 2*len(u.CPUs()), u.used())
}

func TestLostHitsAreCounted(t *testing.T) {
	u := openProbes(t, Options{SampleRing: os.Getpagesize()})
	p := attachProbed(t, u)
	programtest.OnOneCPU(t) // the kernel reports a loss with the next record of the same CPU
	for range 1000 {
		_ = probed(1, 2, 3)
	}
	read := len(probeHits(u, p))
	for end := time.Now().Add(programtest.Deadline); u.Stats().Lost == 0; {
		require.True(t, time.Now().Before(end), "no loss is reported")
		_ = probed(1, 2, 3)
		read += len(probeHits(u, p))
	}
	require.Less(t, read, 1000)
}

func BenchmarkProbe(b *testing.B) {
	b.Run("baseline=without", func(b *testing.B) {
		for b.Loop() {
			_ = probed(1, 2, 3)
		}
	})
	b.Run("hit", func(b *testing.B) {
		u := openProbes(b, Options{SampleRing: 4 << 20})
		attachProbed(b, u)
		for b.Loop() {
			_ = probed(1, 2, 3)
		}
	})
	b.Run("read", func(b *testing.B) {
		u := openProbes(b, Options{SampleRing: 4 << 20})
		attachProbed(b, u)
		var rec Record
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
