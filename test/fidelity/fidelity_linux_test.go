// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package fidelity_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver"
	"github.com/hotprofile/hotprofile/test/fidelity"
)

const (
	// large is the minimum share of a function that is compared.
	large = 0.05
	// threads is larger than the number of threads of each program.
	threads = 16
	// buffersFull is the receiver's log message when sampling pauses.
	buffersFull = "Skipping a thread sample period, buffers are full. ** THIS WILL RESULT IN LOSS OF PROFILING DATA **"
)

// attempts is the number of runs that must all disagree before a test fails.
const attempts = 3

// holds repeats a run until the run has no faults. After the last attempt, it
// fails the test with the faults of the last run. A wrong sampler has faults in
// each run. A busy machine causes faults only in some runs, when it delays the
// timer of one of the two samplers.
func holds(t *testing.T, run func() (faults []string)) {
	t.Helper()
	var faults []string
	for n := range attempts {
		if faults = run(); len(faults) == 0 {
			return
		}
		t.Logf("attempt %d of %d: %s", n+1, attempts, strings.Join(faults, "\n"))
	}
	t.Errorf("%d runs, the last one: %s", attempts, strings.Join(faults, "\n"))
}

// agree compares the shares of functions in our profile and in another sampler's profile.
// It returns a message for each share that differs too much.
func agree(t *testing.T, what string, ours, theirs fidelity.Profile, count fidelity.Count, but ...string) (faults []string) {
	t.Helper()
	if ours.Total() == 0 || theirs.Total() == 0 {
		return []string{fmt.Sprintf("%s: %d and %d samples, nothing to compare", what, ours.Total(), theirs.Total())}
	}
	var s strings.Builder
	tab := tabwriter.NewWriter(&s, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tab, "\n%s, of %d and %d samples\tours %%\ttheirs %%\tapart, points\tat most\n", what, ours.Total(), theirs.Total())
	for _, r := range fidelity.Compare(ours, theirs, count, large) {
		if slices.Contains(but, r.Name) {
			continue
		}
		fmt.Fprintf(tab, "%s\t%.2f\t%.2f\t%+.2f\t%.2f\n", r.Name, 100*r.Ours, 100*r.Theirs, 100*(r.Ours-r.Theirs), 100*r.Apart)
		if r.Disagrees() {
			faults = append(faults, fmt.Sprintf("%s, %s: ours is %.2f %%, theirs %.2f %%, more than %.2f points apart", what, r.Name, 100*r.Ours, 100*r.Theirs, 100*r.Apart))
		}
	}
	_ = tab.Flush()
	t.Log(s.String())
	return faults
}

// TestKernelGoAgreesWithTheRuntimesOwnProfile samples one run of a program with both ways
// of unwinding and with runtime/pprof. The three profiles must agree.
func TestKernelGoAgreesWithTheRuntimesOwnProfile(t *testing.T) {
	program := build(t, "gowork")
	holds(t, func() []string { return goAgrees(t, program) })
}

func goAgrees(t *testing.T, program string) (faults []string) {
	file := filepath.Join(t.TempDir(), "cpu.pprof")
	p := launch(t, program, file)
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

	// The runtime sets no timer on threads that have never run a goroutine. The runtime's
	// monitor is such a thread.
	const monitor = "runtime.sysmon"
	require.Zero(t, fidelity.Cumulative(theirs)[monitor])
	theirs = asRuntime(theirs)
	for _, way := range []struct {
		name string
		s    *sampler
		// hidden lists the functions that call functions without a frame.
		hidden []string
	}{
		{"dwarf", dwarf, nil},
		{"frame pointers", framePointers, []string{"main.aLot", "main.aLittle", "syscall.RawSyscall6"}},
	} {
		ours, _ := way.s.of(p, during)
		ours = asRuntime(ours.User().Without(monitor))
		faults = append(faults, agree(t, way.name+", self", ours, theirs, fidelity.Self)...)
		faults = append(faults, agree(t, way.name+", cumulative", ours, theirs, fidelity.Cumulative, way.hidden...)...)
		faults = append(faults, agree(t, way.name+", inlined", ours, theirs, fidelity.Inlined)...)
		if way.hidden != nil {
			continue
		}
		// main.aLot does three times as much work as main.aLittle.
		counts := fidelity.Cumulative(ours)
		lot, little := counts["main.aLot"], counts["main.aLittle"]
		share := float64(lot) / float64(max(lot+little, 1))
		if most := fidelity.Points + fidelity.Error(0.75, lot+little, fidelity.Z(1)); math.Abs(share-0.75) > most {
			faults = append(faults, fmt.Sprintf("%s: main.aLot has %.2f %% of what it and main.aLittle have, not 75 %% (at most %.2f points apart)", way.name, 100*share, 100*most))
		}
	}
	return faults
}

// asRuntime removes the functions that runtime/pprof and our sampler show in different
// cases. runtime/pprof does not show the root functions of goroutines. If SIGPROF arrives
// while another signal preempts a goroutine, the sample shows the preemption as a call by
// the running function.
func asRuntime(p fidelity.Profile) fidelity.Profile {
	return p.Renamed(func(name string) string {
		switch name {
		case "runtime.goexit", "runtime.asyncPreempt":
			return ""
		}
		return name
	})
}

// ways lists our ways of unwinding stacks. Each way has options for perf and flags for the C
// compiler.
var ways = []struct {
	name   string
	unwind cpuprofilerreceiver.Unwind
	hz     int
	cflags string
	perf   []string
	// unseen lists the functions of the mixed program that perf does not see. perf unwinds C
	// code by tables, but Go code only by frame pointers. It therefore misses the caller of a
	// function without a frame, and the origin of a callback.
	unseen []string
}{
	{"frame pointers", cpuprofilerreceiver.UnwindFramePointer, 997, "-O2 -fno-omit-frame-pointer", []string{"-c", "1009009", "--call-graph", "fp"}, nil},
	{
		"dwarf", cpuprofilerreceiver.UnwindDwarf, 499, "-O2 -fomit-frame-pointer",
		[]string{"-c", "2003003", "--call-graph", "dwarf,4096"},
		[]string{"main.goWork", "main.calledBack", "crosscall2", "goCallback", fidelity.Unknown},
	},
}

func TestKernelCAgreesWithPerf(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			program := build(t, "work.c", strings.Fields(way.cflags)...)
			holds(t, func() []string {
				p := launch(t, program)
				s := sample(t, on(p), at(way.hz), by(way.unwind))
				p.warmUp("once", s)
				r := record(t, p, way.perf...)
				during := p.work(8)
				theirs := asPerf(r.profile())
				s.stop()
				ours, _ := s.of(p, during)
				ours = asPerf(ours)
				return append(agree(t, "self", ours, theirs, fidelity.Self),
					agree(t, "cumulative", ours, theirs, fidelity.Cumulative)...)
			})
		})
	}
}

func TestKernelMixedAgreesWithPerf(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			program := build(t, "mixed", "CGO_CFLAGS="+way.cflags)
			holds(t, func() []string {
				p := launch(t, program)
				s := sample(t, on(p), at(way.hz), by(way.unwind))
				p.warmUp("main.goLeaf", s)
				r := record(t, p, way.perf...)
				during := p.work(8)
				theirs := asPerf(r.profile())
				s.stop()
				ours, _ := s.of(p, during)
				ours = asPerf(ours.Physical())
				faults := append(agree(t, "self", ours, theirs, fidelity.Self),
					agree(t, "cumulative", ours, theirs, fidelity.Cumulative, way.unseen...)...)
				if way.unwind == cpuprofilerreceiver.UnwindDwarf {
					// main.goLeaf has only these two callers.
					counts, n := fidelity.Cumulative(ours), float64(max(ours.Total(), 1))
					leaf, callers := float64(counts["main.goLeaf"])/n, float64(counts["main.goWork"]+counts["main.calledBack"])/n
					if math.Abs(leaf-callers) > fidelity.Points {
						faults = append(faults, fmt.Sprintf("main.goLeaf has %.2f %%, its callers %.2f %%", 100*leaf, 100*callers))
					}
				}
				return faults
			})
		})
	}
}

// asPerf reduces each function to one name, because C libraries have several names for one
// function. It also removes the calling convention, which some names in Go's symbol tables
// have as a suffix.
func asPerf(p fidelity.Profile) fidelity.Profile {
	return p.Renamed(func(name string) string {
		return strings.TrimLeft(strings.TrimPrefix(strings.TrimSuffix(name, ".abi0"), "__GI_"), "_")
	})
}

// TestKernelCPUTimeAgreesWithTheKernel checks that the number of samples times their
// period is the CPU time that the kernel reports.
//
// The kernel has two accounts of CPU time, which differ by the duration of thread switches.
// The scheduler charges the new thread from the moment at which the thread is chosen. The
// events of a process stop with the old thread. They start with the new thread only after
// other events have been switched, so they miss a part of the charged time. The events of a
// cgroup stop later than the events of processes, so they also count a part of the time that
// is charged to the next thread.
//
// The kernel's own clock, cpu-clock in perf stat, counts the time of such events. Our CPU
// time must be between the time of this clock and the charged time. This does not apply to
// events on whole CPUs, which are never switched off.
func TestKernelCPUTimeAgreesWithTheKernel(t *testing.T) {
	for _, of := range []struct {
		name  string
		build []string
		sees  []string
	}{
		{"few switches", []string{"work.c", "-O2"}, []string{"process", "cgroup", "host"}},
		{"many switches", []string{"mixed"}, []string{"process", "host"}},
	} {
		t.Run(of.name, func(t *testing.T) {
			program := build(t, of.build[0], of.build[1:]...)
			holds(t, func() []string { return sameTime(t, program, of.sees) })
		})
	}
}

// sameTime makes a program use CPU time. It returns a message for each sampler whose CPU
// time differs too much from the kernel's CPU time.
func sameTime(t *testing.T, path string, sees []string) (faults []string) {
	t.Helper()
	cpus, err := perfevent.OnlineCPUs()
	require.NoError(t, err)
	p := launch(t, path)
	samplers, clocks := map[string]*sampler{}, map[string]*clock{}
	for _, name := range sees {
		switch name {
		case "process":
			samplers[name] = sample(t, on(p), at(997), by(cpuprofilerreceiver.UnwindFramePointer))
			clocks[name] = clockOf(t, p)
		case "cgroup":
			samplers[name] = sample(t, inCgroupOf(p), at(997), by(cpuprofilerreceiver.UnwindFramePointer))
			clocks[name] = clockOfCgroup(t, p)
		case "host":
			samplers[name] = sample(t, at(997), by(cpuprofilerreceiver.UnwindFramePointer))
		}
	}
	before, begun := stolen(t), time.Now()
	during := p.work(12)
	took := time.Since(begun)
	charged := p.worked()
	// A timer also counts the time that a hypervisor stole. The kernel does not charge
	// this time to the program.
	robbed := stolen(t) - before + tick
	for _, name := range sees {
		s := samplers[name]
		s.stop()
		ours, period := s.of(p, during)
		n, lost := ours.Total(), s.lost()
		low, high, instants, parts := charged, charged, int(took/period)*len(cpus), 0
		if c := clocks[name]; c != nil {
			on := c.time()
			low, high, instants, parts = min(charged, on), max(charged, on), n, len(cpus)*threads
		}
		chance := time.Duration(fidelity.TotalChance(n, instants, parts, fidelity.Z(2*len(sees))) * float64(period))
		// A lost sample may or may not be a sample of the program.
		got, all := time.Duration(n)*period, time.Duration(n+lost)*period
		said := fmt.Sprintf("%s: ours %v (%+.2f %%) and %d lost; the kernel's account from %v to %v; stolen less than %v, chance %v",
			name, got, 100*(got.Seconds()/charged.Seconds()-1), lost, low, high, robbed, chance)
		t.Log(said)
		if full := s.logs.FilterMessage(buffersFull).Len(); full > 0 {
			faults = append(faults, fmt.Sprintf("%s: sampling paused %d times", name, full))
		}
		if float64(all+chance) < (1-fidelity.OfTotal)*float64(low) || float64(got-chance) > (1+fidelity.OfTotal)*float64(high+robbed) {
			faults = append(faults, said)
		}
	}
	return faults
}
