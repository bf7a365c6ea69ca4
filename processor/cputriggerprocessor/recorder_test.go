// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/routing"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

const fiveSeconds = `
min_age: 0s
policies: [{name: cpu, duration: 20s, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]
`

// stream advances the clock by d. Every five seconds it sends a batch for the five
// seconds since the previous batch. It returns the start time of the first batch.
func (r *rig) stream(d time.Duration, parts ...part) (begun time.Time) {
	begun = r.now
	for end := r.now.Add(d); r.now.Before(end); {
		r.run(5 * time.Second)
		require.NoError(r.t, r.send(batch(r.t, r.now, parts...)))
		r.checkSum()
	}
	return begun
}

// starts returns the start times of the emitted profiles, in the order of emission. It
// checks each batch for conformance.
func (r *rig) starts() (out []time.Time) {
	for _, pd := range r.sink.AllProfiles() {
		conformancetest.CheckFatal(r.t, pd, conformancetest.Options{Triggered: true, References: true})
		for _, p := range allProfiles(pd) {
			out = append(out, p.Time().AsTime())
		}
	}
	return out
}

func (r *rig) held() (samples, size int64) {
	return r.metric("otelcol_cpu_trigger.recorder.samples")[""], r.metric("otelcol_cpu_trigger.recorder.size")[""]
}

// everyFive returns the start times of the profiles that stream sends between two times.
// Each start time occurs exactly once.
func everyFive(from, until time.Time) (out []time.Time) {
	for t := from; t.Before(until); t = t.Add(5 * time.Second) {
		out = append(out, t)
	}
	return out
}

func TestRecorderLetsOutWhatLedToTheTrigger(t *testing.T) {
	r := newRig(t, fiveSeconds)
	r.stream(30*time.Second, inContainer(containerA))
	held, size := r.held()
	require.EqualValues(t, 12, held, "what ended less than ten seconds ago")
	require.Positive(t, size)
	require.EqualValues(t, 24, r.samples()["gate_shut"])

	r.source.cores[containerA] = 2
	r.stream(5*time.Second, inContainer(containerA))
	require.Len(t, r.log("gate opened"), 1)
	fired := r.now
	require.Equal(t, everyFive(fired.Add(-10*time.Second), fired), r.starts(), "what ended within ten seconds before the trigger")
	r.stream(40*time.Second, inContainer(containerA))
	require.Equal(t, everyFive(fired.Add(-10*time.Second), fired.Add(20*time.Second)), r.starts())

	phases := map[any]int{}
	id := r.log("gate opened")[0].ContextMap()["trigger_id"]
	for _, pd := range r.sink.AllProfiles() {
		for _, p := range allProfiles(pd) {
			phases[p.attributes["hotprofile.trigger.phase"]]++
			require.Equal(t, id, p.attributes["hotprofile.trigger.id"])
			require.Equal(t, "cpu", p.resource["hotprofile.trigger.policy"])
			require.NotContains(t, p.resource, "process.linux.cgroup")
		}
	}
	require.Equal(t, map[any]int{"before": 2, "after": 4}, phases)
	require.EqualValues(t, 30, r.log("gate closed")[0].ContextMap()["samples"], "and six that arrived when it had closed")
}

// TestNoSampleIsLostAtTheSeams sends each profile a few seconds after its end. Some
// profiles from before the trigger therefore arrive after the trigger. Likewise, some
// profiles from before the closing of the gate arrive after the closing.
func TestNoSampleIsLostAtTheSeams(t *testing.T) {
	for _, late := range []time.Duration{0, time.Second, 4 * time.Second, 5 * time.Second, 12 * time.Second, 25 * time.Second} {
		for _, offset := range []time.Duration{0, time.Second, 3 * time.Second} {
			t.Run(fmt.Sprintf("%v late, offset %v", late, offset), func(t *testing.T) {
				r := newRig(t, fiveSeconds)
				r.run(offset)
				var ends []time.Time
				for i := range 100 {
					if i == 20 {
						r.source.cores[containerA] = 2
					}
					r.run(time.Second)
					if i%5 == 0 {
						r.watch(containerA)
						end := r.now.Add(-late)
						ends = append(ends, end)
						require.NoError(t, r.send(batch(t, end, inContainer(containerA))))
					}
				}
				require.Len(t, r.log("gate opened"), 1)
				fired, closed := r.log("gate opened")[0].ContextMap()["until"].(time.Time).Add(-20*time.Second), r.log("gate closed")[0].ContextMap()
				require.Equal(t, "duration", closed["why"])
				var want []time.Time
				for _, end := range ends {
					if end.After(fired.Add(-10*time.Second)) && end.Add(-5*time.Second).Before(fired.Add(20*time.Second)) {
						want = append(want, end.Add(-5*time.Second))
					}
				}
				got := r.starts()
				require.True(t, slices.IsSortedFunc(got, time.Time.Compare), "in order of capture: %v", got)
				require.Equal(t, want, got)
			})
		}
	}
}

func TestProfilesOfOneUnitAreKeptInOrderOfCapture(t *testing.T) {
	r := newRig(t, fiveSeconds)
	r.watch(containerA)
	r.run(5 * time.Second)
	for _, ago := range []int{0, 6, 3, 1, 9, 2} {
		require.NoError(t, r.send(batch(t, r.now.Add(-time.Duration(ago)*time.Second), inContainer(containerA))))
	}
	r.source.cores[containerA] = 2
	r.runUntil("gate opened", 6*time.Second)
	r.drain()
	got := r.starts()
	require.Len(t, got, 4, "those that ended eight seconds before the trigger or later")
	require.True(t, slices.IsSortedFunc(got, time.Time.Compare), "%v", got)
}

func TestConsumerErrorWhileFlushing(t *testing.T) {
	t.Run("another time works", func(t *testing.T) {
		r := newRig(t, fiveSeconds)
		r.stream(10*time.Second, inContainer(containerA))
		r.source.cores[containerA] = 2
		r.refuse = errors.New("queue is full")
		r.stream(5*time.Second, inContainer(containerA))
		fired := r.now
		require.Len(t, r.log("gate opened"), 1)
		r.stream(10*time.Second, inContainer(containerA))
		require.Empty(t, r.starts())
		held, _ := r.held()
		require.EqualValues(t, 24, held, "what comes goes behind what waits")
		require.Zero(t, r.samples()["refused"], "it may be accepted yet")
		r.refuse = nil
		r.stream(40*time.Second, inContainer(containerA))
		require.Equal(t, everyFive(fired.Add(-10*time.Second), fired.Add(20*time.Second)), r.starts())
		require.NotContains(t, r.log("gate closed")[0].ContextMap(), "nothing_exported")
	})
	t.Run("until its late time is over", func(t *testing.T) {
		r := newRig(t, fiveSeconds)
		r.stream(10*time.Second, inContainer(containerA))
		r.source.cores[containerA] = 2
		r.refuse = errors.New("queue is full")
		r.stream(2*time.Minute, inContainer(containerA))
		require.Empty(t, r.starts())
		require.Positive(t, r.samples()["refused"])
		require.Contains(t, r.log("gate closed")[0].ContextMap()["nothing_exported"], "queue is full")
		r.source.cores[containerA] = 0
		r.stream(30*time.Second, inContainer(containerA))
		held, _ := r.held()
		require.LessOrEqual(t, held, int64(18), "no more than what waits for a trigger")
	})
	t.Run("for good", func(t *testing.T) {
		r := newRig(t, fiveSeconds)
		r.stream(10*time.Second, inContainer(containerA))
		r.source.cores[containerA] = 2
		r.refuse = consumererror.NewPermanent(errors.New("malformed"))
		r.run(5 * time.Second)
		require.Len(t, r.log("gate opened"), 1)
		require.EqualValues(t, 6, r.samples()["refused"])
		held, _ := r.held()
		require.Zero(t, held)
		r.refuse = nil
		r.stream(5*time.Second, inContainer(containerA))
		require.Len(t, r.starts(), 1, "the rest goes straight on")
	})
}

func TestWhatWaitsForASlowConsumerIsBounded(t *testing.T) {
	r := newRig(t, fiveSeconds+"pre_trigger_memory: 512KiB\n")
	p := inContainer(containerA)
	p.events, p.leaves = 300, 300
	r.stream(10*time.Second, p)
	r.source.cores[containerA] = 2
	r.refuse = errors.New("slow")
	r.stream(25*time.Second, p)
	_, size := r.held()
	require.LessOrEqual(t, size, int64(64<<10))
	require.Positive(t, r.samples()["evicted"])
	r.refuse = nil
	r.run(5 * time.Second)
	got := r.starts()
	require.NotEmpty(t, got)
	require.True(t, slices.IsSortedFunc(got, time.Time.Compare))
}

// manyContainers adds n containers to the host.
func (r *rig) manyContainers(n int) (ids []string) {
	for i := range n {
		id := fmt.Sprintf("%064x", i+1)
		r.host.Groups[id] = cgroup.Group{ID: id, ContainerID: id, Cgroup: "/docker/" + id}
		ids = append(ids, id)
	}
	return ids
}

func TestBulkColdUnitsDoNotCostTheHotOneASample(t *testing.T) {
	r := newRig(t, fiveSeconds+"pre_trigger: 20s\npre_trigger_memory: 1MiB\n")
	var cold []part
	for _, id := range r.manyContainers(1000) {
		cold = append(cold, inContainer(id))
	}
	hot := inContainer(containerA)
	hot.events, hot.leaves = 500, 100
	r.watch(containerA)
	r.source.cores[containerA] = 0.9 // warm, while all other units are at 0
	r.run(10 * time.Second)
	for range 4 {
		r.run(5 * time.Second)
		require.NoError(t, r.send(batch(t, r.now, hot)))
		require.NoError(t, r.send(batch(t, r.now, cold...)))
		_, size := r.held()
		require.LessOrEqual(t, size, int64(1<<20))
		require.Greater(t, size, int64(9<<20/10), "it is full")
		r.checkSum()
	}
	require.Positive(t, r.samples()["evicted"])
	r.source.cores[containerA] = 2
	r.run(5 * time.Second)
	require.Len(t, r.log("gate opened"), 1)
	fired := r.now
	require.Equal(t, everyFive(fired.Add(-20*time.Second), fired.Add(-5*time.Second)), r.starts())
	require.EqualValues(t, 1500, r.samples()["passed"])
}

func TestBulkRecorderOfUnitsThatComeAndGo(t *testing.T) {
	r := newRig(t, fiveSeconds+"pre_trigger_memory: 256KiB\n")
	ids := r.manyContainers(3000)
	for round := range 30 {
		some := ids[round*100 : round*100+100]
		var parts []part
		for _, id := range some {
			parts = append(parts, inContainer(id))
		}
		require.NoError(t, r.send(batch(t, r.now, parts...)))
		r.run(5 * time.Second)
		for _, id := range some {
			r.p.units.Remove(r.unit(id), r.now)
			delete(r.host.Groups, id)
		}
		_, size := r.held()
		require.LessOrEqual(t, size, int64(256<<10))
		r.checkSum()
	}
	r.run(20 * time.Second)
	held, size := r.held()
	require.Zero(t, held, "what is left ages out")
	require.Zero(t, size)
	for u := range r.p.recorder.All() {
		require.Fail(t, "it is held", u.Name())
	}
}

func TestShutdownWithTheRecorder(t *testing.T) {
	t.Run("shut", func(t *testing.T) {
		r := newRig(t, fiveSeconds)
		r.stream(10*time.Second, inContainer(containerA))
		require.NoError(t, r.p.Shutdown(t.Context()))
		require.Empty(t, r.sink.AllProfiles())
		require.Equal(t, map[string]int64{"shutdown": 12}, r.samples())
	})
	open := func(t *testing.T) *rig {
		r := newRig(t, fiveSeconds)
		r.stream(10*time.Second, inContainer(containerA), inService())
		r.source.cores[containerA] = 2
		r.refuse = errors.New("not now")
		r.stream(5*time.Second, inContainer(containerA), inService())
		require.Len(t, r.log("gate opened"), 1)
		return r
	}
	t.Run("open", func(t *testing.T) {
		r := open(t)
		r.refuse = nil
		require.NoError(t, r.p.Shutdown(t.Context()))
		require.Len(t, r.starts(), 2)
		require.Equal(t, map[string]int64{"passed": 12, "shutdown": 12, "gate_shut": 12}, r.samples())
		require.EqualValues(t, 12, r.log("gate closed")[0].ContextMap()["samples"])
	})
	t.Run("open, and refused", func(t *testing.T) {
		r := open(t)
		require.NoError(t, r.p.Shutdown(t.Context()))
		require.Empty(t, r.starts())
		require.Equal(t, map[string]int64{"refused": 12, "shutdown": 12, "gate_shut": 12}, r.samples())
	})
	t.Run("open, and no time", func(t *testing.T) {
		r := open(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, r.p.Shutdown(ctx))
		require.Equal(t, map[string]int64{"refused": 12, "shutdown": 12, "gate_shut": 12}, r.samples())
	})
	t.Run("and what comes in that moment", func(t *testing.T) {
		r := newRig(t, fiveSeconds)
		r.watch(containerA)
		r.p.recorder.Close()
		require.NoError(t, r.send(batch(t, r.now, inContainer(containerA))))
		require.Equal(t, map[string]int64{"gate_shut": 6}, r.samples())
	})
}

func TestWithoutPreTriggerNothingIsKept(t *testing.T) {
	r := newRig(t, "pre_trigger: 0s"+fiveSeconds)
	r.stream(10*time.Second, inContainer(containerA))
	held, size := r.held()
	require.Zero(t, held)
	require.Zero(t, size)
	require.Equal(t, map[string]int64{"gate_shut": 12}, r.samples())
}

func TestUnitThatCannotFireIsNotRecorded(t *testing.T) {
	r := newRig(t, fiveSeconds)
	r.fire(containerA)
	require.NoError(t, r.send(batch(t, r.now.Add(time.Second), inContainer(containerA))))
	r.run(30 * time.Second) // the gate is shut and cools down for hours
	require.NoError(t, r.send(batch(t, r.now, inContainer(containerA), inService())))
	require.Equal(t, map[string]int64{"passed": 6, "gate_shut": 6}, r.samples())
	held, _ := r.held()
	require.EqualValues(t, 6, held, "another unit's")
}

func TestSenderThatTriesAgainIsNotRecordedTwice(t *testing.T) {
	r := newRig(t, fiveSeconds)
	r.fire(containerA)
	r.refuse = errors.New("full")
	pd := batch(t, r.now.Add(time.Second), inContainer(containerA), inService())
	pd.MarkReadOnly()
	for range 3 {
		require.Error(t, r.send(pd))
	}
	held, _ := r.held()
	require.EqualValues(t, 6, held)
	require.Equal(t, map[string]int64{"refused": 30}, r.samples(), "three times the hot one's, and twice what was there already")
}

func TestFlushHonoursProfileTypes(t *testing.T) {
	r := newRig(t, `
min_age: 0s
policies: [{name: cpu, profile_types: [cpu], any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}]
`)
	p := inContainer(containerA)
	p.types = []*samples.Type{samples.OnCPU, offCPU}
	r.stream(10*time.Second, p)
	r.source.cores[containerA] = 2
	r.stream(5*time.Second, p)
	require.Len(t, r.log("gate opened"), 1)
	for _, pd := range r.sink.AllProfiles() {
		conformancetest.CheckDictionary(t, pd)
		for _, p := range allProfiles(pd) {
			require.Equal(t, "samples", p.sampleType)
		}
	}
	require.Equal(t, map[string]int64{"passed": 12, "filtered": 12, "gate_shut": 12}, r.samples())
}

func TestReasonOfAnotherGateIsReplacedInWhatWasRecorded(t *testing.T) {
	r := newRig(t, fiveSeconds)
	r.watch(containerA)
	r.run(5 * time.Second)
	pd := batch(t, r.now, inContainer(containerA))
	addAttribute(pd, "hotprofile.trigger.id", "other")
	require.NoError(t, r.send(pd))
	r.source.cores[containerA] = 2
	r.runUntil("gate opened", 10*time.Second)
	r.drain()
	got := allProfiles(r.received())[0].attributes
	require.Equal(t, r.log("gate opened")[0].ContextMap()["trigger_id"], got["hotprofile.trigger.id"])
}

func TestDryRunAndTheRecorder(t *testing.T) {
	const dry = `
min_age: 0s
policies:
  - {name: dry, dry_run: true, duration: 20s, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s}]}
`
	realAt := func(threshold string) string {
		return "  - {name: real, duration: 20s, any_of: [{monitor: cpu_usage, threshold: " + threshold + ", average_over: 5s}]}\n"
	}
	t.Run("alone", func(t *testing.T) {
		r := newRig(t, dry)
		r.source.cores[containerA] = 1.2
		r.stream(60*time.Second, inContainer(containerA))
		require.Empty(t, r.sink.AllProfiles())
		require.Positive(t, r.samples()["dry_run"])
		held, _ := r.held()
		require.Zero(t, held, "nothing would ever ask for it")
	})
	t.Run("with the recorder of another", func(t *testing.T) {
		r := newRig(t, dry+realAt("1.5"))
		r.source.cores[containerA] = 1.2
		r.stream(60*time.Second, inContainer(containerA))
		require.Empty(t, r.sink.AllProfiles())
		require.Positive(t, r.samples()["dry_run"])
		require.Positive(t, r.samples()["gate_shut"], "what is outside of the dry run")
	})
	t.Run("beside one that opens with it, what came before counts for both", func(t *testing.T) {
		r := newRig(t, dry+realAt("1"))
		r.stream(10*time.Second, inContainer(containerA))
		r.source.cores[containerA] = 2
		r.stream(50*time.Second, inContainer(containerA))
		samples := map[any]any{}
		for _, l := range r.log("gate closed") {
			samples[l.ContextMap()["policy"]] = l.ContextMap()["samples"]
		}
		require.Len(t, samples, 2)
		require.Positive(t, samples["real"])
		require.Equal(t, samples["real"], samples["dry"])
	})
	t.Run("beside one that opens with it between judging and keeping", func(t *testing.T) {
		r := newRig(t, dry+realAt("1"))
		r.watch(containerA)
		r.run(5 * time.Second)
		r.p.router.Host = hookedHost{Host: r.host, onContainer: func(id string) {
			if id != containerB { // the profiles of containerA have been handled by now
				return
			}
			r.source.cores[containerA] = 2
			r.run(5 * time.Second)
			require.Len(t, r.log("gate opened"), 2)
		}}
		require.NoError(t, r.send(batch(t, r.now, inContainer(containerA), inContainer(containerB))))
		r.drain()
		openings := r.decision(containerA).Openings(nil)
		require.Len(t, openings, 2)
		for _, o := range openings {
			require.Equal(t, routing.CountSamples(batch(t, r.now, inContainer(containerA))), o.Samples, o.Policy)
		}
	})
	t.Run("beside one that opens", func(t *testing.T) {
		r := newRig(t, dry+realAt("1.5"))
		r.source.cores[containerA] = 1.2
		r.stream(15*time.Second, inContainer(containerA))
		r.source.cores[containerA] = 2
		r.stream(15*time.Second, inContainer(containerA))
		require.NotEmpty(t, r.sink.AllProfiles())
		for _, pd := range r.sink.AllProfiles() {
			for _, p := range allProfiles(pd) {
				require.Equal(t, "real", p.attributes["hotprofile.trigger.policy"])
			}
		}
	})
}

func TestOverBudgetAndTheRecorder(t *testing.T) {
	t.Run("units at once", func(t *testing.T) {
		r := newRig(t, fiveSeconds+"budgets: {max_concurrent_units: 1}\n")
		r.watch(containerA, service)
		r.source.cores[containerA], r.source.cores[service] = 2, 1.5
		r.stream(20*time.Second, inContainer(containerA), inService())
		require.Len(t, r.log("gate opened"), 1)
		require.Positive(t, r.samples()["over_budget"], "the service's gate is kept shut by a budget")
		require.Zero(t, r.samples()["gate_shut"])
		r.source.cores[service] = 0
		r.stream(60*time.Second, inContainer(containerA), inService())
		require.Positive(t, r.samples()["gate_shut"])
	})
	t.Run("bytes", func(t *testing.T) {
		r := newRig(t, "pre_trigger: 0s"+fiveSeconds+"budgets: {max_bytes_per_hour: 4KiB}\n")
		r.fire(containerA)
		size := 0
		for range 4 {
			require.NoError(t, r.send(batch(t, r.now.Add(time.Second), inContainer(containerA), inContainer(containerA))))
		}
		for _, pd := range r.sink.AllProfiles() {
			conformancetest.CheckFatal(t, pd, conformancetest.Options{Triggered: true, References: true})
			size += (&pprofile.ProtoMarshaler{}).ProfilesSize(pd)
		}
		require.LessOrEqual(t, size, 4<<10)
		require.Greater(t, size, 2<<10)
		require.Positive(t, r.samples()["over_budget"])
		require.EqualValues(t, 48, r.samples()["over_budget"]+r.samples()["passed"])
	})
	t.Run("bytes of what was recorded", func(t *testing.T) {
		r := newRig(t, fiveSeconds+"budgets: {max_bytes_per_hour: 4KiB}\n")
		p := inContainer(containerA)
		p.events, p.leaves = 60, 20
		r.stream(10*time.Second, p)
		r.source.cores[containerA] = 2
		r.stream(10*time.Second, p)
		require.Positive(t, r.samples()["passed"])
		require.Positive(t, r.samples()["over_budget"])
		held, _ := r.held()
		require.Zero(t, held)
	})
}

// TestSenderDoesNotMakeOthersWait blocks the next component. The processor must still
// evaluate conditions, read monitors and accept profiles.
func TestSenderDoesNotMakeOthersWait(t *testing.T) {
	r := newRig(t, fiveSeconds)
	block, entered := make(chan struct{}), make(chan struct{}, 1)
	var mu sync.Mutex
	var got []time.Time
	next, err := xconsumer.NewProfiles(func(_ context.Context, pd pprofile.Profiles) error {
		select {
		case entered <- struct{}{}:
		default:
		}
		<-block
		mu.Lock()
		defer mu.Unlock()
		for _, p := range allProfiles(pd) {
			got = append(got, p.Time().AsTime())
		}
		return nil
	})
	require.NoError(t, err)
	r.p.router.Next = next
	r.watch(containerA)
	r.p.sender.Start()
	step := func() {
		for range 5 {
			r.now = r.now.Add(time.Second)
			r.c.Collect()
		}
		r.p.evaluate()
		require.NoError(t, r.send(batch(t, r.now, inContainer(containerA))))
		r.checkSum()
	}
	step()
	step()
	r.source.cores[containerA] = 2
	step()
	require.Len(t, r.log("gate opened"), 1)
	fired := r.now
	<-entered
	step()
	step()
	close(block)
	require.Eventually(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(got) == 4 }, time.Minute, time.Millisecond)
	require.Equal(t, everyFive(fired.Add(-10*time.Second), fired.Add(10*time.Second)), got)
	require.NoError(t, r.p.Shutdown(t.Context()))
}

// TestBulkRecorderInAnyOrder takes random steps. It checks that each sample is either
// delivered or counted as lost.
func TestBulkRecorderInAnyOrder(t *testing.T) {
	for seed := range uint64(15) {
		r := newRig(t, `
min_age: 0s
pre_trigger_memory: 64KiB
policies:
  - {name: cpu, duration: 10s, cooldown: 0s, any_of: [{monitor: cpu_usage, threshold: 1, average_over: 5s, release_below: 0.5}]}
  - {name: dry, dry_run: true, duration: 7s, cooldown: 0s, any_of: [{monitor: cpu_usage, threshold: 0.7, average_over: 5s}]}
`)
		rnd := rand.New(rand.NewPCG(seed, 7))
		ids := r.manyContainers(8)
		for step := range 300 {
			id := ids[rnd.IntN(len(ids))]
			switch rnd.IntN(8) {
			case 0:
				r.source.cores[id] = rnd.Float64() * 2
			case 1:
				r.refuse = []error{nil, errors.New("now"), consumererror.NewPermanent(errors.New("ever"))}[rnd.IntN(3)]
			case 2:
				if u, ok := r.p.units.Lookup(id); ok && rnd.IntN(4) == 0 {
					r.p.units.Remove(u, r.now)
				}
			case 3, 4:
				r.run(time.Duration(1+rnd.IntN(4)) * time.Second)
			default:
				p := inContainer(id)
				p.events = 1 + rnd.IntN(100)
				_ = r.send(batch(t, r.now.Add(-time.Duration(rnd.IntN(8000))*time.Millisecond), p, inContainer(ids[rnd.IntN(len(ids))])))
			}
			if step%20 == 0 { // collects all metrics, so this is not done at each step
				r.checkSum()
			}
		}
	}
}

// hookedHost calls onContainer before each lookup of a container.
type hookedHost struct {
	identify.Host
	onContainer func(id string)
}

func (h hookedHost) Container(id string) (cgroup.Group, bool) {
	h.onContainer(id)
	return h.Host.Container(id)
}
