// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/attributes"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/recorder"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

// foreign builds a batch in the format of OpenTelemetry's eBPF profiler. The batch has one
// dictionary and one resource per process. Each resource has one scope with a profile per
// origin. Samples have attributes for the thread and the CPU. On-CPU samples have
// timestamps but no values, and their profile has a period. Off-CPU samples have one value
// per timestamp, and their profile has no period. No profile has an id.
type foreign struct {
	pd      pprofile.Profiles
	strings map[string]int32
	entries map[string]int32
	end     time.Time
}

func newForeign(end time.Time) *foreign {
	f := &foreign{pd: pprofile.NewProfiles(), strings: map[string]int32{}, entries: map[string]int32{}, end: end}
	d := f.pd.Dictionary()
	d.LinkTable().AppendEmpty()
	d.MappingTable().AppendEmpty()
	d.StackTable().AppendEmpty()
	d.AttributeTable().AppendEmpty()
	d.LocationTable().AppendEmpty()
	d.FunctionTable().AppendEmpty()
	f.str("")
	return f
}

func (f *foreign) str(s string) int32 {
	if _, ok := f.strings[s]; !ok {
		f.strings[s] = int32(f.pd.Dictionary().StringTable().Len())
		f.pd.Dictionary().StringTable().Append(s)
	}
	return f.strings[s]
}

// once adds an entry to a table if the entry is not in the table yet.
func (f *foreign) once(key string, length int, add func()) int32 {
	if _, ok := f.entries[key]; !ok {
		f.entries[key] = int32(length)
		add()
	}
	return f.entries[key]
}

func (f *foreign) attribute(key string, value any) int32 {
	d := f.pd.Dictionary()
	return f.once(fmt.Sprint("attribute", key, value), d.AttributeTable().Len(), func() {
		k := f.str(key)
		a := d.AttributeTable().AppendEmpty()
		a.SetKeyStrindex(k)
		if err := a.Value().FromRaw(value); err != nil {
			panic(err)
		}
	})
}

func (f *foreign) location(file, function string, address uint64) int32 {
	d := f.pd.Dictionary()
	build := f.attribute("process.executable.build_id.htlhash", "hash of "+file)
	mapping := f.once("mapping"+file, d.MappingTable().Len(), func() {
		m := d.MappingTable().AppendEmpty()
		m.SetMemoryStart(0x1000)
		m.SetMemoryLimit(0x100000)
		m.SetFilenameStrindex(f.str(file))
		m.AttributeIndices().Append(build)
	})
	kind := f.attribute("profile.frame.type", "native")
	if function != "" {
		kind = f.attribute("profile.frame.type", "cpython")
	}
	return f.once(fmt.Sprint("location", file, function, address), d.LocationTable().Len(), func() {
		l := d.LocationTable().AppendEmpty()
		l.SetAddress(address)
		l.SetMappingIndex(mapping)
		l.AttributeIndices().Append(kind)
		if function != "" {
			line := l.Lines().AppendEmpty()
			line.SetLine(int64(address))
			line.SetFunctionIndex(f.once("function"+function, d.FunctionTable().Len(), func() {
				fn := d.FunctionTable().AppendEmpty()
				fn.SetNameStrindex(f.str(function))
				fn.SetFilenameStrindex(f.str("main.py"))
			}))
		}
	})
}

func (f *foreign) stack(process, n int) int32 {
	locations := []int32{
		f.location(fmt.Sprintf("app%d", process), "", uint64(0x2000+n)),
		f.location("python3", fmt.Sprintf("handle%d", n%3), uint64(0x3000+n%3)), f.location("libc.so.6", "", 0x1234),
	}
	d := f.pd.Dictionary()
	return f.once(fmt.Sprint("stack", locations), d.StackTable().Len(), func() {
		d.StackTable().AppendEmpty().LocationIndices().Append(locations...)
	})
}

// process adds the profiles of a process for five seconds.
func (f *foreign) process(pid int, containerID, executable string, samples int) {
	rp := f.pd.ResourceProfiles().AppendEmpty()
	rp.SetSchemaUrl("https://opentelemetry.io/schemas/1.37.0")
	a := rp.Resource().Attributes()
	if containerID != "" {
		a.PutStr("container.id", containerID)
	}
	a.PutInt("process.pid", int64(pid))
	if executable != "" {
		a.PutStr("process.executable.path", "/usr/bin/"+executable)
		a.PutStr("process.executable.name", executable)
	}
	a.PutStr("host.name", "here") // resource detection adds this attribute
	sp := rp.ScopeProfiles().AppendEmpty()
	sp.SetSchemaUrl(rp.SchemaUrl())
	sp.Scope().SetName("go.opentelemetry.io/ebpf-profiler")
	sp.Scope().SetVersion("v0.0.202633")
	start := f.end.Add(-5 * time.Second)
	for _, origin := range []string{"samples", "off_cpu", "events"} {
		p := sp.Profiles().AppendEmpty()
		switch origin {
		case "samples":
			p.SampleType().SetTypeStrindex(f.str("samples"))
			p.SampleType().SetUnitStrindex(f.str("count"))
			p.PeriodType().SetTypeStrindex(f.str("cpu"))
			p.PeriodType().SetUnitStrindex(f.str("nanoseconds"))
			p.SetPeriod(1e9 / 20)
		case "off_cpu":
			p.SampleType().SetTypeStrindex(f.str("off_cpu"))
			p.SampleType().SetUnitStrindex(f.str("nanoseconds"))
		default:
			p.SampleType().SetTypeStrindex(f.str("events"))
			p.SampleType().SetUnitStrindex(f.str("count"))
		}
		for n := range samples {
			s := p.Samples().AppendEmpty()
			for i := range 1 + n%3 {
				s.TimestampsUnixNano().Append(uint64(start.Add(time.Duration(n*10+i) * time.Millisecond).UnixNano()))
				if origin == "off_cpu" {
					s.Values().Append(int64(1000 * (n + 1)))
				}
			}
			s.SetStackIndex(f.stack(pid, n))
			s.AttributeIndices().Append(f.attribute("thread.name", fmt.Sprintf("worker-%d", n%2)),
				f.attribute("thread.id", int64(pid+n%2)), f.attribute("cpu.logical_number", int64(n%4)))
			if n%4 == 0 {
				s.SetLinkIndex(f.once(fmt.Sprint("link", n), f.pd.Dictionary().LinkTable().Len(), func() {
					l := f.pd.Dictionary().LinkTable().AppendEmpty()
					l.SetTraceID(pcommon.TraceID{1, byte(n + 1)})
					l.SetSpanID(pcommon.SpanID{2, byte(n + 1)})
				}))
			}
		}
		p.SetTime(pcommon.NewTimestampFromTime(start))
		p.SetDurationNano(uint64(5 * time.Second))
	}
}

// received encodes the batch and returns the batch that a collector decodes.
func (f *foreign) received(t testing.TB) pprofile.Profiles {
	t.Helper()
	wire, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(f.pd)
	require.NoError(t, err)
	pd, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(wire)
	require.NoError(t, err)
	return pd
}

func foreignBatch(end time.Time) *foreign {
	f := newForeign(end)
	f.process(200, containerA, "server", 8)   // a process of a container
	f.process(1, containerA, "entrypoint", 4) // the container's first process, with its pid inside the container
	f.process(100, "", "checkout", 6)         // a service of the host
	f.process(100, "", "something-else", 5)   // a pid that belongs to another process on this host
	f.process(4711, "", "", 3)                // has no attribute that confirms the pid
	f.process(99, containerB, "unknown", 2)   // a container that is not on this host
	return f
}

func TestForeignProfilesAreMatchedSplitAndGated(t *testing.T) {
	for name, make := range map[string]func(*testing.T, *foreign) pprofile.Profiles{
		"built here":     func(_ *testing.T, f *foreign) pprofile.Profiles { return f.pd },
		"over the wire":  func(t *testing.T, f *foreign) pprofile.Profiles { return f.received(t) },
		"and read again": func(t *testing.T, f *foreign) pprofile.Profiles { pd := f.received(t); pd.MarkReadOnly(); return pd },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, policy("cpu", 1))
			r.router.Remove = attributes.NewFilter([]string{"process.pid", "process.executable.path"})
			r.watch(containerA, service)
			r.run(5 * time.Second)
			early := foreignBatch(r.now)
			want := conformancetest.Contents(early.pd)[:6] // three profiles of each process of the container
			conformancetest.CheckDictionary(t, early.pd)
			r.send(make(t, early))
			r.checkSum()
			r.cores[containerA] = 2
			r.runUntil(containerA, 6*time.Second, isOpen)
			late := foreignBatch(r.now.Add(time.Second))
			want = append(want, conformancetest.Contents(late.pd)[:6]...)
			r.send(make(t, late))

			var got []map[string]any
			for _, pd := range r.sink.AllProfiles() {
				conformancetest.CheckDictionary(t, pd, conformancetest.Options{References: true})
				got = append(got, conformancetest.Contents(pd)...)
			}
			for _, p := range slices.Concat(want, got) {
				delete(p["resource"].(map[string]any), "service.name")
				delete(p["resource"].(map[string]any), "hotprofile.trigger.policy")
				delete(p["resource"].(map[string]any), "hotprofile.trigger.kind")
				delete(p, "attributes") // the reason of the trigger
			}
			require.Equal(t, want, got)
			per := int64(0)
			for _, n := range []int{5, 3, 2} {
				f := newForeign(r.now)
				f.process(1, "", "", n)
				per += int64(CountSamples(f.pd))
			}
			require.EqualValues(t, 2*per, r.outcomes()["unmatched"])
			require.Zero(t, r.outcomes()["filtered"])
			require.Positive(t, r.held(), "the service's are recorded")
			require.Equal(t, []any{string(identify.NoWitness)}, r.reasonsLogged(), "the others may have ended")
		})
	}
}

func TestResourcesOfHostsAndPods(t *testing.T) {
	for name, c := range map[string]struct {
		attributes map[string]any
		why        identify.Unmatched
	}{
		"a pod":                {map[string]any{"k8s.pod.uid": "5f9d2a9e-3c30-4c2f-8ac0-000000000001", "k8s.node.name": "here"}, identify.NoPod},
		"a host":               {map[string]any{"host.name": "here"}, identify.NoAttributes},
		"a host by its id":     {map[string]any{"host.id": "1d", "os.type": "linux"}, identify.NoAttributes},
		"another host":         {map[string]any{"host.name": "elsewhere", "k8s.pod.uid": "5f9d2a9e"}, identify.OtherHost},
		"a service":            {map[string]any{"service.name": "checkout", "service.instance.id": "1"}, identify.NoAttributes},
		"nothing":              {nil, identify.NoAttributes},
		"a pod's container":    {map[string]any{"k8s.pod.uid": "5f9d2a9e", "container.id": containerB}, identify.NoContainer},
		"a pid that is a text": {map[string]any{"process.pid": "100", "process.executable.name": "checkout"}, identify.NoAttributes},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.send(batch(t, r.now, part{attributes: c.attributes}))
			require.Equal(t, map[string]int64{"unmatched": 6}, r.outcomes())
			require.Equal(t, []any{string(c.why)}, r.reasonsLogged())
		})
	}
}

// TestBulkSplitOfRandomBatches checks that the parts of a batch together have the content of
// the batch. No sample or dictionary entry may be lost, orphaned or duplicated.
func TestBulkSplitOfRandomBatches(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		f := newForeign(epoch)
		for range 1 + rnd.IntN(12) {
			f.process(1+rnd.IntN(5), "", fmt.Sprintf("app%d", rnd.IntN(3)), 1+rnd.IntN(20))
		}
		src := f.pd
		if seed%2 == 0 {
			src = f.received(t)
		}
		whole := conformancetest.Contents(src)
		src.MarkReadOnly()
		parts := make([][]*dictionary.ProfileRef, 1+rnd.IntN(6))
		want := make([][]map[string]any, len(parts))
		n := 0
		for ref := range dictionary.All(src) {
			to := rnd.IntN(len(parts))
			parts[to] = append(parts[to], &ref)
			want[to] = append(want[to], whole[n])
			n++
		}
		s := &dictionary.Subset{} // one Subset for all parts, as in the gate
		for i, picks := range parts {
			out := s.Copy(src, picks)
			conformancetest.CheckDictionary(t, out)
			require.Equal(t, want[i], conformancetest.Contents(out), "seed %d", seed)
			data, err := recorder.Pack(out)
			require.NoError(t, err)
			again, err := recorder.Unpack(data)
			require.NoError(t, err)
			conformancetest.CheckDictionary(t, again, conformancetest.Options{References: true})
			require.Equal(t, want[i], conformancetest.Contents(again), "seed %d", seed)
		}
	}
}

func TestBatchOfManyUnits(t *testing.T) {
	r := newRig(t, policy("cpu", 1))
	ids := r.manyContainers(500)
	var parts []part
	for i, id := range ids {
		parts = append(parts, inContainer(id))
		if i%2 == 0 {
			r.cores[id] = 2
		}
	}
	r.watch(ids...)
	r.run(4 * time.Second)
	r.send(batch(t, r.now, parts...))
	recorded := 0
	for u, data := range r.recorder.All() {
		recorded++
		pd, err := recorder.Unpack(data)
		require.NoError(t, err)
		conformancetest.CheckFatal(t, pd, conformancetest.Options{References: true})
		require.Equal(t, u.Name(), decode(pd)[0].resource["container.id"])
		require.Less(t, pd.Dictionary().StringTable().Len(), 40, "its part of the dictionary alone")
	}
	require.Equal(t, 500, recorded)
	r.runUntil(ids[0], 6*time.Second, isOpen)
	require.Len(t, r.sink.AllProfiles(), 250)
	r.send(batch(t, r.now.Add(time.Second), parts...))
	out := decode(r.received())
	require.Len(t, out, 250)
	for _, p := range out {
		require.Equal(t, p.resource["container.id"], p.attributes["hotprofile.unit"])
	}
	require.EqualValues(t, 3000, r.outcomes()["passed"])
	require.EqualValues(t, 3000, r.held())
}

// jumped returns t with a wall clock reading that is later by the given duration, as if the
// wall clock had been set forward. The monotonic clock reading is unchanged.
func jumped(t time.Time, by time.Duration) time.Time {
	wall := (*uint64)(unsafe.Pointer(&t)) // monotonic flag, 33 bits of seconds, 30 bits of nanoseconds
	*wall += uint64(by/time.Second) << 30
	return t
}

func TestWallClockJumps(t *testing.T) {
	now := time.Now()
	require.Equal(t, time.Hour, jumped(now, time.Hour).Round(0).Sub(now.Round(0)))
	for _, by := range []time.Duration{time.Hour, -time.Hour, 24 * time.Hour, -24 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			short := policy("cpu", 1)
			short.Duration = 20 * time.Second
			r := newRigAt(t, time.Now(), trigger.Config{Policies: []trigger.Policy{short}}) // the time has a monotonic clock reading
			r.watch(containerA)
			step := func() {
				for range 5 {
					r.collect()
				}
				r.evaluate()
				r.send(batch(t, r.now.Round(0), inContainer(containerA)))
			}
			step()
			step()
			r.now = jumped(r.now, by)
			step()
			require.EqualValues(t, 12, r.held(), "what was recorded does not age by the wall clock")
			r.cores[containerA] = 2
			step()
			require.Len(t, r.openings(containerA), 1)
			require.Len(t, decode(r.sink.AllProfiles()...), 2)
			r.now = jumped(r.now, by)
			step()
			require.Len(t, decode(r.sink.AllProfiles()...), 3, "the gate is open")
			r.now = jumped(r.now, -by)
			step()
			require.Len(t, decode(r.sink.AllProfiles()...), 4)
			require.Len(t, r.openings(containerA), 1)
			step()
			step()
			require.Empty(t, r.openings(containerA))
			step()
			require.Len(t, decode(r.sink.AllProfiles()...), 6, "and closes when its time has passed")
		})
	}
}

func TestBaselineAndManualStamps(t *testing.T) {
	cool := policy("cpu", 1)
	cool.Baseline = trigger.Baseline{Every: time.Minute, Duration: 10 * time.Second}
	r := newRig(t, cool)
	r.cores[containerA] = 0.2
	r.watch(containerA)
	for range 40 {
		r.run(5 * time.Second)
		r.send(batch(t, r.now, inContainer(containerA)))
		r.checkSum()
	}
	require.NotEmpty(t, r.sink.AllProfiles(), "a window of a cool time each minute")
	for _, p := range decode(r.sink.AllProfiles()...) {
		require.Equal(t, "baseline", p.attributes["hotprofile.trigger.phase"])
		require.Equal(t, "cpu", p.attributes["hotprofile.trigger.policy"])
		require.Equal(t, "cpu_usage", p.attributes["hotprofile.trigger.monitor"])
		require.Equal(t, "5s average", p.attributes["hotprofile.trigger.window"])
	}
	before := len(decode(r.sink.AllProfiles()...))
	_, _, err := r.units.OpenGate(identify.Identity{Name: containerA, Group: r.host.Groups[containerA]}, trigger.Alert{}, 20*time.Second, r.now)
	require.NoError(t, err)
	r.sender.Drain(t.Context())
	got := decode(r.sink.AllProfiles()...)[before:]
	require.NotEmpty(t, got, "what was recorded leaves at once")
	p := got[len(got)-1]
	require.Equal(t, "manual", p.attributes["hotprofile.trigger.monitor"])
	require.Equal(t, "manual", p.attributes["hotprofile.trigger.policy"])
	require.Equal(t, "manual", p.resource["hotprofile.trigger.policy"])
	require.Equal(t, "manual", p.attributes["hotprofile.trigger.window"])
	require.Equal(t, "0", p.attributes["hotprofile.trigger.value"])
	require.Equal(t, "0", p.attributes["hotprofile.trigger.threshold"])
	require.Equal(t, "before", p.attributes["hotprofile.trigger.phase"])
}
