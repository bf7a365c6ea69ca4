// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/test/hosttest"
	"github.com/hotprofile/hotprofile/test/pprofstest"
)

// overshoot is the number of bytes by which the memory may exceed its limit. The limit is
// checked only after each sample, and a sample of these tests uses less than overshoot.
const overshoot = 32 << 10

func TestMemoryIsBounded(t *testing.T) {
	t.Run("of one file", func(t *testing.T) {
		h := started(t, nil)
		h.open.maxFileMemory = 200 << 10
		for range 5 {
			h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", "t1", ""), Stacks: 1000})
			require.LessOrEqual(t, h.memory(), h.open.maxFileMemory+overshoot)
		}
		require.NoError(t, h.shutdown(context.Background()))
		require.Greater(t, len(h.files()), 5)
		require.Greater(t, h.counted("pprof.files", "memory"), int64(5))
		require.EqualValues(t, 5000, h.counted("pprof.samples", "written"))
	})
	t.Run("of all files", func(t *testing.T) {
		h := started(t, nil)
		h.maxMemory = 1 << 20
		sent := 0
		for i := range 20 {
			h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason(fmt.Sprint("u", i), "t1", ""), Stacks: 100 + i})
			sent += 100 + i
			require.LessOrEqual(t, h.memory(), h.maxMemory+overshoot)
		}
		require.NotEmpty(t, h.files())
		require.NoError(t, h.shutdown(context.Background()))
		require.EqualValues(t, sent, h.counted("pprof.samples", "written"))
		require.Zero(t, h.memory())
		require.Empty(t, h.open.files)
	})
	t.Run("is not used up by time", func(t *testing.T) {
		h := started(t, nil)
		h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", "t1", ""), Stacks: 100, Cold: 3})
		held := h.memory()
		for range 50 {
			h.send(pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", "t1", ""), Stacks: 100, Cold: 3})
		}
		require.Equal(t, held, h.memory())
	})
}

// received returns a request that was decoded from bytes. Its strings are therefore
// not shared with other requests.
func received(t *testing.T, in pprofstest.Input) pprofile.Profiles {
	t.Helper()
	p := pprofile.NewProfiles()
	in.Build(t).CopyTo(p)
	b, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(p)
	require.NoError(t, err)
	p, err = (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(b)
	require.NoError(t, err)
	return p
}

func TestMemoryEstimateIsCloseToTheHeap(t *testing.T) {
	close := func(t *testing.T, estimate, held int) {
		t.Helper()
		t.Logf("estimated %d bytes, held %d", estimate, held)
		require.Greater(t, float64(estimate), 0.8*float64(held))
		require.Less(t, float64(estimate), 2.5*float64(held))
	}
	t.Run("of many stacks", func(t *testing.T) {
		h := started(t, nil)
		h.open.maxFileMemory = 1 << 30
		in := received(t, pprofstest.Input{Resource: pprofstest.Checkout(), Stacks: 20_000})
		before := hosttest.Heap()
		require.NoError(t, h.consume(context.Background(), in))
		close(t, h.memory(), hosttest.Heap()-before)
		runtime.KeepAlive(in)
	})
	for _, name := range []string{"service", "unit", "policy", "trigger"} {
		t.Run("of long names, of the "+name, func(t *testing.T) {
			h := started(t, nil)
			before := hosttest.Heap()
			for i := range 30 {
				long := fmt.Sprint(i) + strings.Repeat("x", 1<<20)
				in := pprofstest.Input{Resource: map[string]string{"service.name": "s"}, Profile: pprofstest.Reason(fmt.Sprint("u", i), "t", ""), Hot: 1}
				switch name {
				case "service":
					in.Resource["service.name"] = long
				case "unit":
					in.Profile["hotprofile.unit"] = long
				case "policy":
					in.Resource["hotprofile.trigger.policy"] = long
				case "trigger":
					in.Profile["hotprofile.trigger.id"] = long
				}
				require.NoError(t, h.consume(context.Background(), received(t, in)))
			}
			held := hosttest.Heap() - before
			close(t, h.memory(), held)
			require.Less(t, held, 4<<20, "30 MiB were sent")
			runtime.KeepAlive(h)
		})
	}
}

// TestEntriesThatAreReferredToOftenCostTheirSizeOnce covers a small request that refers
// to a long entry of its dictionary many times.
func TestEntriesThatAreReferredToOftenCostTheirSizeOnce(t *testing.T) {
	const samples = 3000
	long := strings.Repeat("x", 512<<10)
	for name, change := range map[string]func(pprofile.ProfilesDictionary, pprofile.Sample){
		"a label": func(d pprofile.ProfilesDictionary, s pprofile.Sample) {
			if d.AttributeTable().Len() == 1 {
				a := d.AttributeTable().AppendEmpty()
				d.StringTable().Append("key")
				a.SetKeyStrindex(int32(d.StringTable().Len() - 1))
				a.Value().SetStr(long)
			}
			s.AttributeIndices().Append(1)
		},
		"a list": func(d pprofile.ProfilesDictionary, s pprofile.Sample) {
			if d.AttributeTable().Len() == 1 {
				a := d.AttributeTable().AppendEmpty()
				d.StringTable().Append("key")
				a.SetKeyStrindex(int32(d.StringTable().Len() - 1))
				a.Value().SetEmptySlice().AppendEmpty().SetStr(long)
			}
			s.AttributeIndices().Append(1)
		},
		"a stack": func(d pprofile.ProfilesDictionary, s pprofile.Sample) {
			a := d.AttributeTable().AppendEmpty()
			a.SetKeyStrindex(1)
			a.Value().SetInt(int64(d.AttributeTable().Len()))
			s.AttributeIndices().Append(int32(d.AttributeTable().Len() - 1))
			if d.StackTable().At(1).LocationIndices().Len() < 1<<18 {
				d.StackTable().At(1).LocationIndices().FromRaw(make([]int32, 1<<18))
			}
			s.SetStackIndex(1)
		},
		"a label of a sample": func(_ pprofile.ProfilesDictionary, s pprofile.Sample) {
			if s.AttributeIndices().Len() == 0 {
				s.AttributeIndices().FromRaw(make([]int32, 1000))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := started(t, nil)
			in := pprofile.NewProfiles()
			pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", "t1", ""), Stacks: samples}.Build(t).CopyTo(in)
			d := in.Dictionary()
			d.AttributeTable().RemoveIf(func(pprofile.KeyValueAndUnit) bool { return false })
			for _, s := range profileOf(in).Samples().All() {
				change(d, s)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			require.NoError(t, h.consume(context.Background(), in))
			require.LessOrEqual(t, h.memory(), h.maxMemory+overshoot)
			h.settle()
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<30))
			require.NoError(t, h.shutdown(context.Background()))
			require.EqualValues(t, samples, h.counted("pprof.samples", "written"))
		})
	}
}

// stalled returns an exporter whose disk does not respond until answer is called. The
// locked mutex of the directory simulates such a disk.
func stalled(t *testing.T, host *statusHost) (h *harness, answer func()) {
	t.Helper()
	h = newHarness(t, nil)
	h.startOn(host)
	h.maxMemory, h.queue.patience = 1<<20, time.Nanosecond
	h.dir.mu.Lock()
	return h, h.dir.mu.Unlock
}

func TestDiskThatDoesNotAnswerHoldsNothingUp(t *testing.T) {
	host := &statusHost{Host: componenttest.NewNopHost()}
	h, answer := stalled(t, host)
	const requests = 60
	for i := range requests {
		in := pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason(fmt.Sprint("u", i%7), fmt.Sprint("t", i), ""), Stacks: 100}
		require.NoError(t, h.consume(context.Background(), in.Build(t)), "it returns")
		h.mu.Lock()
		held, bound := h.memory(), h.maxMemory+overshoot
		if f := h.queue.current; f != nil {
			bound += f.size() // memory for encoding; the next profile makes room for it
		}
		h.mu.Unlock()
		require.LessOrEqual(t, held, bound)
	}
	require.Equal(t, 1, h.logs.FilterMessage("disk does not answer, profiles wait in memory").Len())
	require.Equal(t, []componentstatus.Status{componentstatus.StatusRecoverableError}, host.reported())
	lost := h.counted("pprof.samples", "failed")
	require.Positive(t, lost)
	require.Zero(t, h.counted("pprof.samples", "written"))
	require.EqualValues(t, h.counted("pprof.files.failed", ""), h.logs.FilterMessage("profile not written, its samples are lost").Len())

	h.mu.Lock()
	h.queue.patience = time.Hour
	h.mu.Unlock()
	answer()
	h.settle()
	require.Positive(t, h.logs.FilterMessage("disk answers again").Len())
	require.Positive(t, h.counted("pprof.samples", "written"), "what waited in memory is written")
	require.NoError(t, h.shutdown(context.Background()))
	require.EqualValues(t, 100*requests, h.counted("pprof.samples", "written")+h.counted("pprof.samples", "failed"), "each is counted once")
	require.Zero(t, h.memory())
}

func TestShutdownDoesNotWaitForADiskThatDoesNotAnswer(t *testing.T) {
	h, answer := stalled(t, &statusHost{Host: componenttest.NewNopHost()})
	h.maxMemory = maxMemory
	for i := range 3 {
		require.NoError(t, h.consume(context.Background(), pprofstest.Input{Profile: pprofstest.Reason(fmt.Sprint("u", i), "t", ""), Hot: 5}.Build(t)))
	}
	err := h.shutdown(context.Background())
	require.ErrorIs(t, err, errStalled)
	require.ErrorContains(t, err, "3 files")
	require.EqualValues(t, 3, h.counted("pprof.files.failed", ""))
	require.EqualValues(t, 15, h.counted("pprof.samples", "failed"))
	answer()
	h.settle()
	require.Zero(t, h.counted("pprof.samples", "written"), "each is counted once")
}

func TestSenderThatDoesNotWaitForASlowDiskKeepsItsProfiles(t *testing.T) {
	h, answer := stalled(t, &statusHost{Host: componenttest.NewNopHost()})
	h.queue.patience = time.Hour // the disk is slow but not stalled
	ctx, cancel := context.WithCancel(context.Background())
	h.maxMemory = 100 << 10
	full := pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", "t1", ""), Stacks: 1}
	// The last of these requests exceeds the limit, so the next request has to wait.
	for h.memory() <= h.maxMemory {
		require.NoError(t, h.consume(ctx, full.Build(t)))
		full.Later += time.Second
		full.Profile["hotprofile.unit"] += "a"
	}
	sent := h.counted("pprof.samples", "written")
	for _, f := range h.open.files {
		sent += int64(f.pprof.Events())
	}
	cancel()
	require.ErrorIs(t, h.consume(ctx, full.Build(t)), context.Canceled)
	answer()
	require.NoError(t, h.shutdown(context.Background()))
	require.EqualValues(t, sent, h.counted("pprof.samples", "written"), "nothing of it was added")
	require.Zero(t, h.counted("pprof.samples", "failed"))
}
