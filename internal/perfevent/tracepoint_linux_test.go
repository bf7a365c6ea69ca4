// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent/tracefs"
	"github.com/hotprofile/hotprofile/test/hosttest"
	"github.com/hotprofile/hotprofile/test/programtest"
)

// sends returns the tracepoint that a socket hits when it sends data, and the fields of the
// tracepoint.
func sends(t *testing.T) (Tracepoint, []tracefs.Field) {
	t.Helper()
	f, err := tracefs.Find(hosttest.Tracefs(t))
	require.NoError(t, err)
	if _, _, err = f.Tracepoint("sock:sock_send_length"); err != nil {
		t.Skipf("this kernel has no such tracepoint: %v", err)
	}
	id, fields, err := f.Tracepoint("sock:sock_send_length", "ret", "family")
	require.NoError(t, err)
	return Tracepoint{ID: id, Filter: "ret > 0 && family == 2"}, fields
}

// sender reads lines with a number and a size. For each line, it sends that number of
// datagrams of that size, and answers with a line.
func sender() int {
	to, err := net.Dial("udp4", os.Getenv("SEND_TO"))
	if err != nil {
		return 1
	}
	programtest.Answer(func(line string) string {
		count, size, _ := strings.Cut(line, " ")
		n, _ := strconv.Atoi(count)
		bytes, _ := strconv.Atoi(size)
		for range n {
			if _, err := to.Write(make([]byte, bytes)); err != nil {
				return err.Error()
			}
		}
		return "sent"
	})
	return 0
}

func startSender(t *testing.T, command func(string, ...string) *exec.Cmd) *programtest.Program {
	t.Helper()
	to, err := net.ListenPacket("udp4", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { to.Close() })
	t.Setenv("SEND_TO", to.LocalAddr().String())
	return programtest.StartMode(t, command(programtest.Binary(t)), "sender")
}

// TestHitsOfATracepointAreCountedAndSampled makes two programs send datagrams. Only one
// of the programs is in the sampled cgroup. At every sampling rate, the samples represent
// all hits of this program except for the hits after the last sample.
func TestHitsOfATracepointAreCountedAndSampled(t *testing.T) {
	tracepoint, fields := sends(t)
	s := open(t, Options{HostWide: true, Kernel: KernelTime, Tracepoints: []Tracepoint{tracepoint}})
	group := hosttest.NewCgroup(t, "hotprofile-tracepoint")
	inside, outside := startSender(t, group.Command), startSender(t, exec.Command)

	for name, attach := range map[string]func() (*Attachment, error){
		"a cgroup":  func() (*Attachment, error) { return s.AttachCgroup(perfEventRoot(t) + group.Path) },
		"a process": func() (*Attachment, error) { return s.AttachProcess(inside.PID()) },
	} {
		t.Run(name, func(t *testing.T) {
			if name == "a process" && !CountsHitsOfThreads() {
				t.Skip("this kernel does not count the hits of threads")
			}
			a := attached(t)(attach())
			before := s.Stats()
			var samples, hits, bytes, stacks uint64
			take := func(r *Record) {
				if r.Type != TypeSample {
					return
				}
				require.Same(t, a, r.Attachment)
				require.Equal(t, inside.PID(), r.PID)
				ret, ok := fields[0].Int(r.Sample.Raw)
				require.True(t, ok)
				family, _ := fields[1].Int(r.Sample.Raw)
				require.EqualValues(t, 2, family)
				require.Empty(t, r.Sample.Kernel)
				if len(r.Sample.User) > 1 {
					stacks++
				}
				samples, hits, bytes = samples+1, hits+r.Hits, bytes+r.Hits*uint64(ret)
			}
			const n, size = 5000, 100
			all := strconv.Itoa(n) + " " + strconv.Itoa(size)
			require.Equal(t, "sent", outside.Order(all))
			for i := range 10 { // fits into the ring
				require.Equal(t, "sent", inside.Order("500 "+strconv.Itoa(size)), i)
				drain(t, s, take)
			}
			require.EqualValues(t, n, samples, "each is sampled")
			require.EqualValues(t, n, hits)
			require.EqualValues(t, n*size, bytes)
			require.EqualValues(t, samples, stacks)

			samples, hits, bytes = 0, 0, 0
			require.NoError(t, s.SetHits(a, []int{13}, func(mean int) int { return mean }))
			require.Equal(t, "sent", inside.Order(all))
			drain(t, s, take)
			require.NoError(t, s.DetachAll())
			drain(t, s, take)
			drain(t, s, take)
			unsampled := s.Stats().Unsampled - before.Unsampled
			t.Logf("%d samples represent %d of %d hits, and %d came after them", samples, hits, n, unsampled)
			require.EqualValues(t, n, hits+unsampled)
			require.EqualValues(t, hits*size, bytes)
			require.Greater(t, samples, uint64(n/13)*9/10)
			require.Less(t, samples, uint64(n/13)*12/10)
			require.Empty(t, s.threadHits[0])
			require.Zero(t, s.Stats().Lost-before.Lost)
		})
	}
}

// TestLostHitsAreCountedOnce causes more hits than fit into the ring. The next sample
// represents the lost hits.
func TestLostHitsAreCountedOnce(t *testing.T) {
	tracepoint, _ := sends(t)
	s := open(t, Options{HostWide: true, Kernel: KernelTime, SampleRing: 4096, Tracepoints: []Tracepoint{tracepoint}})
	if !s.formatLost {
		t.Skip("this kernel does not count lost samples by event")
	}
	group := hosttest.NewCgroup(t, "hotprofile-tracepoint")
	programtest.OnOneCPU(t) // the kernel reports lost hits with the next sample of the same CPU
	program := startSender(t, group.Command)
	attached(t)(s.AttachCgroup(perfEventRoot(t) + group.Path))
	var samples, hits, lost uint64
	take := func(r *Record) {
		if r.Type == TypeSample {
			samples, hits, lost = samples+1, hits+r.Hits, lost+r.HitsLost
		}
	}
	require.Equal(t, "sent", program.Order("3000 10"))
	drain(t, s, take)
	require.Equal(t, "sent", program.Order("1 10"))
	drain(t, s, take)
	require.NoError(t, s.DetachAll())
	drain(t, s, take)
	drain(t, s, take)
	t.Logf("%d samples represent %d hits, of which %d were lost", samples, hits, lost)
	require.EqualValues(t, 3001, hits+s.Stats().Unsampled)
	require.Equal(t, hits, samples+lost)
	require.Positive(t, lost)
	require.LessOrEqual(t, lost, s.Stats().Lost)
}

func TestTracepointEverywhereHasNoStack(t *testing.T) {
	other, _ := sends(t)
	tracepoint := other
	tracepoint.Everywhere = true
	for name, copied := range map[string]int{"no copies": 0, "copies": 1024} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Options{HostWide: true, Kernel: KernelTime, UserStack: copied, Tracepoints: []Tracepoint{tracepoint, other}})
			_, err := s.AttachTracepoint(1)
			require.Error(t, err)
			a := attached(t)(s.AttachTracepoint(0))
			program := startSender(t, exec.Command)
			require.Equal(t, "sent", program.Order("10 100"))
			n := 0
			drain(t, s, func(r *Record) {
				if r.Type == TypeSample && r.PID == program.PID() {
					require.Same(t, a, r.Attachment)
					require.Empty(t, r.Sample.User)
					require.Empty(t, r.Sample.Kernel)
					require.NotEmpty(t, r.Sample.Raw)
					n++
				}
			})
			require.Equal(t, 10, n)

			require.NoError(t, s.SetHits(a, []int{7, 0}, func(mean int) int { return mean }))
			drain(t, s, func(*Record) {}) // removes the hits of other programs so far
			require.Equal(t, "sent", program.Order("700 100"))
			own, hits := 0, uint64(0)
			drain(t, s, func(r *Record) {
				if r.Type == TypeSample {
					hits += r.Hits
					if r.PID == program.PID() {
						own++
					}
				}
			})
			require.GreaterOrEqual(t, hits, uint64(700-7*len(s.CPUs())), "others may send too")
			require.Less(t, own, 350, "about 100")
		})
	}
}

func TestTracepointsNeedAHostWideSession(t *testing.T) {
	_, err := Open(Options{Kernel: KernelTime, Tracepoints: []Tracepoint{{ID: 1}}})
	require.ErrorContains(t, err, "host-wide")
}
