// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package fidelity_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver"
	"github.com/hotprofile/hotprofile/test/fidelity"
)

const (
	// large is the share from which on functions are compared.
	large = 0.05
	// threads is more than the programs have.
	threads = 16
	// buffersFull is what the receiver says when it pauses.
	buffersFull = "Skipping a thread sample period, buffers are full. ** THIS WILL RESULT IN LOSS OF PROFILING DATA **"
)

// agree fails the test where a function's share is not as others say.
func agree(t *testing.T, what string, ours, theirs fidelity.Profile, count fidelity.Count, but ...string) {
	t.Helper()
	var s strings.Builder
	tab := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tab, "\n%s, of %d and %d samples\tours %%\ttheirs %%\tapart, points\tat most\n", what, ours.Total(), theirs.Total())
	for _, r := range fidelity.Compare(ours, theirs, count, large) {
		if slices.Contains(but, r.Name) {
			continue
		}
		fmt.Fprintf(tab, "%s\t%.2f\t%.2f\t%+.2f\t%.2f\n", r.Name, 100*r.Ours, 100*r.Theirs, 100*(r.Ours-r.Theirs), 100*r.Apart)
		if r.Disagrees() {
			t.Errorf("%s, %s: ours is %.2f %%, theirs %.2f %%, more than %.2f points apart", what, r.Name, 100*r.Ours, 100*r.Theirs, 100*r.Apart)
		}
	}
	_ = tab.Flush()
	t.Log(s.String())
}

// TestGoAgreesWithTheRuntimesOwnProfile has one run of a program seen by both
// ways of unwinding and by runtime/pprof.
func TestGoAgreesWithTheRuntimesOwnProfile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cpu.pprof")
	p := launch(t, build(t, "gowork"), file)
	dwarf := sample(t, on(p), at(499), by(cpuprofilerreceiver.UnwindDwarf))
	framePointers := sample(t, on(p), at(499), by(cpuprofilerreceiver.UnwindFramePointer))
	p.warmUp("main.sort", dwarf, framePointers)
	during := p.work(24)
	dwarf.stop()
	framePointers.stop()
	written, err := os.ReadFile(file)
	require.NoError(t, err)
	theirs, _, err := fidelity.OfPprof(bytes.NewReader(written))
	require.NoError(t, err)

	// The runtime has no timer on a thread that has never run a goroutine, which
	// is its monitor.
	const monitor = "runtime.sysmon"
	require.Zero(t, fidelity.Cumulative(theirs)[monitor])
	seen := func(s *sampler) fidelity.Profile {
		ours, _ := s.of(p, during)
		return asRuntime(ours.User().Without(monitor))
	}
	theirs = asRuntime(theirs)
	t.Run("dwarf", func(t *testing.T) {
		ours := seen(dwarf)
		agree(t, "self", ours, theirs, fidelity.Self)
		agree(t, "cumulative", ours, theirs, fidelity.Cumulative)
		agree(t, "inlined", ours, theirs, fidelity.Inlined)

		counts := fidelity.Cumulative(ours)
		lot, little := counts["main.aLot"], counts["main.aLittle"]
		share := float64(lot) / float64(lot+little)
		require.InDelta(t, 0.75, share, fidelity.Points+fidelity.Error(0.75, lot+little, fidelity.Z(1)),
			"one does three times what the other does")
	})
	t.Run("frame pointers", func(t *testing.T) {
		ours := seen(framePointers)
		agree(t, "self", ours, theirs, fidelity.Self)
		// These call functions that have no frame, which hides them from frame
		// pointers.
		hidden := []string{"main.aLot", "main.aLittle", "syscall.RawSyscall6"}
		agree(t, "cumulative", ours, theirs, fidelity.Cumulative, hidden...)
		agree(t, "inlined", ours, theirs, fidelity.Inlined)
	})
}

// asRuntime leaves out what runtime/pprof does not show, or shows for another
// reason than time spent there: roots of goroutines are left out by it, and where
// a goroutine is preempted by one signal as SIGPROF comes, its sample shows the
// preemption as called by what was running.
func asRuntime(p fidelity.Profile) fidelity.Profile {
	return p.Renamed(func(name string) string {
		switch name {
		case "runtime.goexit", "runtime.asyncPreempt":
			return ""
		}
		return name
	})
}

// ways are how stacks are unwound, by us and by perf, and how C is built for it.
var ways = []struct {
	name   string
	unwind cpuprofilerreceiver.Unwind
	hz     int
	cflags string
	perf   []string
	// unseen are functions of the mixed program that perf does not see: it has
	// nothing but frame pointers for Go's code, though it unwinds C by tables. So
	// it misses those who call a function without a frame, and where a callback
	// has come from.
	unseen []string
}{
	{"frame pointers", cpuprofilerreceiver.UnwindFramePointer, 997, "-O2 -fno-omit-frame-pointer", []string{"-c", "1009009", "--call-graph", "fp"}, nil},
	{"dwarf", cpuprofilerreceiver.UnwindDwarf, 499, "-O2 -fomit-frame-pointer", []string{"-c", "2003003", "--call-graph", "dwarf,1024"},
		[]string{"main.goWork", "main.calledBack", "crosscall2", "goCallback", fidelity.Unknown}},
}

func TestCAgreesWithPerf(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			p := launch(t, build(t, "work.c", strings.Fields(way.cflags)...))
			s := sample(t, on(p), at(way.hz), by(way.unwind))
			p.warmUp("once", s)
			r := record(t, p, way.perf...)
			during := p.work(8)
			theirs := asPerf(r.profile())
			s.stop()
			ours, _ := s.of(p, during)
			ours = asPerf(ours)
			agree(t, "self", ours, theirs, fidelity.Self)
			agree(t, "cumulative", ours, theirs, fidelity.Cumulative)
		})
	}
}

func TestMixedAgreesWithPerf(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			p := launch(t, build(t, "mixed", "CGO_CFLAGS="+way.cflags))
			s := sample(t, on(p), at(way.hz), by(way.unwind))
			p.warmUp("main.goWork", s)
			r := record(t, p, way.perf...)
			during := p.work(8)
			theirs := asPerf(r.profile())
			s.stop()
			ours, _ := s.of(p, during)
			ours = asPerf(ours.Physical())
			agree(t, "self", ours, theirs, fidelity.Self)
			agree(t, "cumulative", ours, theirs, fidelity.Cumulative, way.unseen...)
			if way.unwind == cpuprofilerreceiver.UnwindDwarf {
				counts, n := fidelity.Cumulative(ours), float64(ours.Total())
				callers := counts["main.goWork"] + counts["main.calledBack"]
				require.InDelta(t, float64(counts["main.goLeaf"])/n, float64(callers)/n, fidelity.Points, "these two call it, and nobody else")
			}
		})
	}
}

// asPerf gives functions one of their names: Go's symbol tables have the calling
// convention in some, and C libraries' have several for one function.
func asPerf(p fidelity.Profile) fidelity.Profile {
	return p.Renamed(func(name string) string {
		return strings.TrimLeft(strings.TrimPrefix(strings.TrimSuffix(name, ".abi0"), "__GI_"), "_")
	})
}

// TestCPUTimeAgreesWithTheKernel has samples times their period be the CPU time
// that the kernel has charged, less what it charged a program for switching perf's
// own events: with a process target these are switched with each thread, and that
// time belongs to no event. The kernel's own clock of a program's events, the
// count of perf stat, lacks it likewise. Events on whole CPUs stay on.
func TestCPUTimeAgreesWithTheKernel(t *testing.T) {
	t.Run("few switches", func(t *testing.T) {
		p := launch(t, build(t, "work.c", "-O2"))
		s := map[string]*sampler{
			"process": sample(t, on(p), at(997), by(cpuprofilerreceiver.UnwindFramePointer)),
			"cgroup":  sample(t, inCgroupOf(p), at(997), by(cpuprofilerreceiver.UnwindFramePointer)),
			"host":    sample(t, at(997), by(cpuprofilerreceiver.UnwindFramePointer)),
		}
		sameTime(t, p, nil, s)
	})
	t.Run("many switches", func(t *testing.T) {
		p := launch(t, build(t, "mixed"))
		s := map[string]*sampler{
			"process": sample(t, on(p), at(997), by(cpuprofilerreceiver.UnwindFramePointer)),
			"host":    sample(t, at(997), by(cpuprofilerreceiver.UnwindFramePointer)),
		}
		sameTime(t, p, startClock(t, p), s)
	})
}

// sameTime has a program work and holds what samplers say of its CPU time against
// the kernel's account; clock is nil where it switches too seldom to matter.
func sameTime(t *testing.T, p *program, clock *clock, samplers map[string]*sampler) {
	t.Helper()
	cpus, err := perfevent.OnlineCPUs()
	require.NoError(t, err)
	before, begun := stolen(t), time.Now()
	during := p.work(12)
	took := time.Since(begun)
	charged := p.worked()
	least := charged
	if clock != nil {
		least = min(charged, clock.time())
	}
	// A hypervisor's time is in what a timer sees and not in what is charged.
	most := charged + stolen(t) - before + tick
	for name, s := range samplers {
		s.stop()
		ours, period := s.of(p, during)
		n, lost := ours.Total(), s.lost()
		if full := s.logs.FilterMessage(buffersFull).Len(); name == "host" && (full > 0 || lost > 0) {
			t.Logf("%s: not compared, this machine is too busy for its samples to be read in time: %d lost, paused %d times", name, lost, full)
			continue
		}
		low, instants, parts := least, n, len(cpus)*threads
		if name == "host" {
			low, instants, parts = charged, int(took/period)*len(cpus), 0
		}
		chance := time.Duration(fidelity.TotalChance(n, instants, parts, fidelity.Z(2*len(samplers))) * float64(period))
		got, all := time.Duration(n)*period, time.Duration(n+lost)*period
		t.Logf("%s: ours %v (%+.2f %%) and %d lost, the kernel charged %v, its events were on for %v or more, stolen less than %v, chance %v",
			name, got, 100*(got.Seconds()/charged.Seconds()-1), lost, charged, low, most-charged, chance)
		assert.GreaterOrEqual(t, all+chance, time.Duration((1-fidelity.OfTotal)*float64(low)), name)
		assert.LessOrEqual(t, got-chance, time.Duration((1+fidelity.OfTotal)*float64(most)), name)
	}
}
