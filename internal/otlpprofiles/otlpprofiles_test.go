// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package otlpprofiles

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/internal/protosize"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

const (
	start  = 1_780_000_000_000_000_000
	window = 5_000_000_000
	period = 10_309_278 // 97 Hz
)

func newBatch() *samples.Batch {
	b := samples.NewBatch(64 << 20)
	b.Start, b.End = start, start+window
	return b
}

// ids returns a source of profile ids that is the same in every run.
func ids() *rand.ChaCha8 { return rand.NewChaCha8([32]byte{1}) }

func options() Options {
	return Options{ScopeName: "github.com/hotprofile/hotprofile", ScopeVersion: "0.1.0", Rand: ids()}
}

func resource(pid int) *samples.Resource {
	return &samples.Resource{PID: pid, Attributes: []samples.Attribute{
		{Key: "process.executable.name", Value: "app"},
		{Key: "process.pid", Value: int64(pid)},
		{Key: "service.name", Value: "checkout"},
	}}
}

func mappingOf(path string) *samples.Mapping {
	return &samples.Mapping{PID: 1, Start: 0x400000, Limit: 0x800000, Path: path, BuildID: "abcd" + hex.EncodeToString([]byte(path))}
}

func location(m *samples.Mapping, address uint64, functions ...string) *samples.Location {
	l := &samples.Location{Type: samples.FrameGo, Mapping: m, Address: address, Resolved: true}
	for i, f := range functions {
		l.Lines = append(l.Lines, samples.Line{Function: f, SystemName: f, File: "main.go", StartLine: 10, Line: int64(11 + i)})
	}
	return l
}

type built struct {
	profiles pprofile.Profiles
	events   int
}

// build builds requests. It checks that each request follows the rules of all backends, and
// that no size is underestimated.
func build(t testing.TB, opts Options, batch *samples.Batch) []built {
	t.Helper()
	var out []built
	b := NewBuilder(opts)
	for p, tally := range b.Build(batch) {
		events := total(tally)
		out = append(out, built{p, events})
		m := pprofile.ProtoMarshaler{}
		empty := pprofile.NewProfiles()
		p.Dictionary().CopyTo(empty.Dictionary())
		dictionary := m.ProfilesSize(empty)
		require.Equal(t, dictionary, protosize.Bytes(b.dict.Size()), "the dictionary's size must be exact")
		require.LessOrEqual(t, m.ProfilesSize(p), b.size+b.dict.Size(), "the request's size must be an upper bound")
		require.LessOrEqual(t, float64(b.size+b.dict.Size()), 1.8*float64(m.ProfilesSize(p))+1000, "and a close one")
		conformancetest.CheckFatal(t, p, conformancetest.Options{
			SampleAttributes: []string{"thread.id", "http.route", "tenant"},
			MaxSamples:       opts.MaxSamples, MaxProfileBytes: opts.MaxProfileBytes, MaxRequestBytes: opts.MaxRequestBytes,
		})
		require.Equal(t, events, stamps(p))
	}
	return out
}

func total(t Tally) (n int) {
	for _, events := range t {
		n += events
	}
	return n
}

func stamps(p pprofile.Profiles) int {
	n := 0
	for _, rp := range p.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			for _, profile := range sp.Profiles().All() {
				for _, s := range profile.Samples().All() {
					n += s.TimestampsUnixNano().Len()
				}
			}
		}
	}
	return n
}

// textOf formats profiles as text. Each index is replaced by the
// table entry at the index.
func textOf(p pprofile.Profiles) string {
	var out strings.Builder
	d := p.Dictionary()
	str := func(i int32) string { return d.StringTable().At(int(i)) }
	attributes := func(indices interface {
		Len() int
		At(int) int32
	},
	) string {
		var s string
		for i := range indices.Len() {
			a := d.AttributeTable().At(int(indices.At(i)))
			s += fmt.Sprintf(" %s=%s", str(a.KeyStrindex()), a.Value().AsString())
		}
		return s
	}
	for _, rp := range p.ResourceProfiles().All() {
		fmt.Fprintln(&out, "resource", rp.Resource().Attributes().AsRaw())
		for _, sp := range rp.ScopeProfiles().All() {
			fmt.Fprintln(&out, "scope", sp.Scope().Name(), sp.Scope().Version())
			for _, f := range sp.Profiles().All() {
				fmt.Fprintf(&out, "profile %s/%s period %d %s/%s from %d for %d\n", str(f.SampleType().TypeStrindex()), str(f.SampleType().UnitStrindex()),
					f.Period(), str(f.PeriodType().TypeStrindex()), str(f.PeriodType().UnitStrindex()), int64(f.Time())-start, f.DurationNano())
				for _, s := range f.Samples().All() {
					var at []int64
					for _, stamp := range s.TimestampsUnixNano().All() {
						at = append(at, int64(stamp)-start)
					}
					fmt.Fprintf(&out, "sample%s at %v values %v\n", attributes(s.AttributeIndices()), at, s.Values().AsRaw())
					for _, i := range d.StackTable().At(int(s.StackIndex())).LocationIndices().All() {
						l := d.LocationTable().At(int(i))
						m := d.MappingTable().At(int(l.MappingIndex()))
						fmt.Fprintf(&out, "  %#x%s in %#x-%#x+%#x %s%s\n", l.Address(), attributes(l.AttributeIndices()),
							m.MemoryStart(), m.MemoryLimit(), m.FileOffset(), str(m.FilenameStrindex()), attributes(m.AttributeIndices()))
						for _, line := range l.Lines().All() {
							f := d.FunctionTable().At(int(line.FunctionIndex()))
							fmt.Fprintf(&out, "    %s (%s) %s:%d:%d\n", str(f.NameStrindex()), str(f.SystemNameStrindex()), str(f.FilenameStrindex()), f.StartLine(), line.Line())
						}
					}
				}
			}
		}
	}
	return out.String()
}

func TestSamplesKeepAllFields(t *testing.T) {
	b := newBatch()
	app := mappingOf("/bin/app")
	app.GoBuildID = "go/id"
	app.FileOffset = 0x1000
	kernel := &samples.Mapping{Start: 0xffffffff80000000, Limit: 0xffffffffffffffff, Path: "[kernel.kallsyms]"}
	leaf := &samples.Location{
		Type: samples.FrameKernel, Mapping: kernel, Address: 0xffffffff81000000, Leaf: true,
		Lines: []samples.Line{{Function: "do_syscall_64"}},
	}
	inlined := location(app, 0x401000, "main.inner", "main.outer")
	unknown := &samples.Location{Type: samples.FrameNative, Mapping: app, Address: 0x402000}
	jit := &samples.Location{Type: samples.FrameNative, Address: 0x7f0000000000}
	stack := &samples.Stack{Locations: []*samples.Location{leaf, inlined, unknown, jit}}
	cut := &samples.Stack{Locations: []*samples.Location{inlined}, Truncated: true}
	key := samples.Key{Resource: resource(7), Type: samples.OnCPU, Stack: stack, Period: period}
	b.Add(key, start)
	b.Add(key, start+window-1)
	key.Thread = samples.Thread{Name: "worker", ID: 42}
	b.Add(key, start+5)
	key.Stack, key.Thread = cut, samples.Thread{}
	b.Add(key, start+6)

	got := build(t, options(), b)
	require.Len(t, got, 1)
	require.Equal(t, 4, got[0].events)
	const deep = `  0xffffffff81000000 profile.frame.type=kernel in 0xffffffff80000000-0xffffffffffffffff+0x0 [kernel.kallsyms]
    do_syscall_64 () :0:0
  0x401000 profile.frame.type=go in 0x400000-0x800000+0x1000 /bin/app process.executable.build_id.gnu=abcd2f62696e2f617070 process.executable.build_id.go=go/id
    main.inner (main.inner) main.go:10:11
    main.outer (main.outer) main.go:10:12
  0x402000 profile.frame.type=native in 0x400000-0x800000+0x1000 /bin/app process.executable.build_id.gnu=abcd2f62696e2f617070 process.executable.build_id.go=go/id
  0x7f0000000000 profile.frame.type=native in 0x0-0x0+0x0 
`
	require.Equal(t, `resource map[process.executable.name:app process.pid:7 service.name:checkout]
scope github.com/hotprofile/hotprofile 0.1.0
profile samples/count period 10309278 cpu/nanoseconds from 0 for 5000000000
sample at [0 4999999999] values []
`+deep+`sample thread.name=worker thread.id=42 at [5] values []
`+deep+`sample hotprofile.stack.truncated=true at [6] values []
  0x401000 profile.frame.type=go in 0x400000-0x800000+0x1000 /bin/app process.executable.build_id.gnu=abcd2f62696e2f617070 process.executable.build_id.go=go/id
    main.inner (main.inner) main.go:10:11
    main.outer (main.outer) main.go:10:12
`, textOf(got[0].profiles))
}

func TestEachResourceAndTypeAndPeriodIsOneProfile(t *testing.T) {
	b := newBatch()
	wall := &samples.Type{Name: "samples", Unit: "count", PeriodName: "cpu", PeriodUnit: "nanoseconds"}
	stack := &samples.Stack{Locations: []*samples.Location{location(mappingOf("/bin/app"), 0x401000, "main.main")}}
	first, second := resource(1), resource(2)
	for _, k := range []samples.Key{
		{Resource: first, Type: samples.OnCPU, Period: period},
		{Resource: second, Type: samples.OnCPU, Period: period},
		{Resource: first, Type: samples.OnCPU, Period: 2 * period},
		{Resource: first, Type: wall, Period: period},
		{Resource: second, Type: samples.OnCPU, Period: period},
	} {
		k.Stack = stack
		b.Add(k, start)
	}
	got := build(t, options(), b)
	require.Len(t, got, 1)
	p := got[0].profiles
	require.Equal(t, 2, p.ResourceProfiles().Len(), "one ResourceProfiles per resource")
	require.Equal(t, 3, p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().Len())
	require.Equal(t, 1, p.ResourceProfiles().At(1).ScopeProfiles().At(0).Profiles().Len())
	require.Equal(t, 2, p.Dictionary().StackTable().Len())
	seen := map[pprofile.ProfileID]bool{}
	for _, rp := range p.ResourceProfiles().All() {
		for _, profile := range rp.ScopeProfiles().At(0).Profiles().All() {
			require.False(t, seen[profile.ProfileID()], "profiles have different ids")
			seen[profile.ProfileID()] = true
		}
	}
}

func TestCodeSharedByProcessesIsInTheDictionaryOnce(t *testing.T) {
	b := newBatch()
	r := resource(1)
	for range 3 { // as if interned again each time
		m := mappingOf("/lib/libc.so.6")
		stack := &samples.Stack{Locations: []*samples.Location{location(m, 0x401000, "memcpy"), location(m, 0x401000, "memcpy")}}
		b.Add(samples.Key{Resource: r, Type: samples.OnCPU, Stack: stack, Period: period}, start)
		b.Add(samples.Key{Resource: resource(2), Type: samples.OnCPU, Stack: stack, Period: period}, start)
	}
	got := build(t, options(), b)
	require.Len(t, got, 1)
	d := got[0].profiles.Dictionary()
	require.Equal(t, 2, d.StackTable().Len())
	require.Equal(t, 2, d.LocationTable().Len())
	require.Equal(t, 2, d.MappingTable().Len())
	require.Equal(t, 2, d.FunctionTable().Len())
	profile := got[0].profiles.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0)
	require.Equal(t, 1, profile.Samples().Len(), "equal stacks are one sample")
	require.Equal(t, 3, profile.Samples().At(0).TimestampsUnixNano().Len())
}

func TestTheSameBatchGivesTheSameBytes(t *testing.T) {
	bytesOf := func() []byte {
		var out []byte
		for _, r := range build(t, options(), load(3000, 40, 5)) {
			b, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(r.profiles)
			require.NoError(t, err)
			out = append(out, b...)
		}
		return out
	}
	require.True(t, bytes.Equal(bytesOf(), bytesOf()))
}

func TestBuilderKeepsNothingOfTheLastBatch(t *testing.T) {
	b := NewBuilder(Options{Rand: ids()})
	var batch *samples.Batch
	for range 2 {
		n := 0
		batch = load(500, 20, 2)
		for p, tally := range b.Build(batch) {
			conformancetest.CheckFatal(t, p, conformancetest.Options{})
			n += total(tally)
		}
		require.Equal(t, 500, n)
	}
	require.Nil(t, b.resource)
	for _, s := range batch.Samples() {
		require.Positive(t, b.dict.StackBound(s.Stack), "the builder keeps no stacks alive")
	}
}

func TestBulkOutputIsSplitAtTheLimitsWithoutLoss(t *testing.T) {
	for name, tc := range map[string]struct {
		opts               Options
		batch              *samples.Batch
		requests, profiles int // minimum numbers
	}{
		"samples per profile": {Options{MaxSamples: 100}, load(5000, 1000, 3), 1, 12},
		"bytes per profile":   {Options{MaxProfileBytes: 4000}, load(5000, 20, 3), 1, 12},
		"bytes per request":   {Options{MaxRequestBytes: 30_000}, load(5000, 20, 3), 3, 3},
		"all of them":         {Options{MaxSamples: 5, MaxProfileBytes: 2000, MaxRequestBytes: 20_000}, load(5000, 20, 3), 3, 20},
		"one stack with more timestamps than a request": {Options{}, load(600_000, 1, 1), 3, 5},
		"the defaults": {Options{}, load(60_000, 30_000, 3), 2, 5},
	} {
		t.Run(name, func(t *testing.T) {
			tc.opts.Rand = ids()
			events, profiles := 0, 0
			got := build(t, tc.opts, tc.batch)
			for _, r := range got {
				events += r.events
				profiles += r.profiles.ProfileCount()
			}
			require.Equal(t, tc.batch.Count(), events)
			require.GreaterOrEqual(t, len(got), tc.requests)
			require.GreaterOrEqual(t, profiles, tc.profiles)
		})
	}
}

func TestBulkRequestIsFilledBeforeTheNextOneBegins(t *testing.T) {
	got := build(t, Options{}, load(60_000, 30_000, 3))
	require.Greater(t, len(got), 1)
	for _, r := range got[:len(got)-1] {
		require.Greater(t, (&pprofile.ProtoMarshaler{}).ProfilesSize(r.profiles), DefaultMaxRequestBytes*7/10)
	}
}

func TestStackLargerThanARequestIsDropped(t *testing.T) {
	b := newBatch()
	huge := &samples.Stack{Locations: []*samples.Location{location(mappingOf("/bin/app"), 0x401000, strings.Repeat("x", 3<<20))}}
	small := &samples.Stack{Locations: []*samples.Location{location(mappingOf("/bin/app"), 0x401000, "main.main")}}
	key := samples.Key{Resource: resource(1), Type: samples.OnCPU, Period: period}
	for _, stack := range []*samples.Stack{small, huge, small, {}} {
		key.Stack = stack
		require.True(t, b.Add(key, start))
	}
	n := 0
	for _, r := range build(t, options(), b) {
		n += r.events
	}
	require.Equal(t, 2, n)
}

func TestRecursiveStackCountsEachLocationOnce(t *testing.T) {
	b := newBatch()
	deep := &samples.Stack{}
	again := location(mappingOf("/bin/app"), 0x401000, strings.Repeat("x", 100<<10))
	for range 127 {
		deep.Locations = append(deep.Locations, again)
	}
	b.Add(samples.Key{Resource: resource(1), Type: samples.OnCPU, Stack: deep, Period: period}, start)
	require.Len(t, build(t, options(), b), 1)
}

func TestTimestampsOutsideOfTheWindowAreMovedToItsEdge(t *testing.T) {
	b := newBatch()
	key := samples.Key{
		Resource: resource(1), Type: samples.OnCPU, Period: period,
		Stack: &samples.Stack{Locations: []*samples.Location{location(mappingOf("/bin/app"), 0x401000, "main.main")}},
	}
	b.Add(key, start-1)
	b.Add(key, start+window)
	got := build(t, options(), b)
	s := got[0].profiles.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0).Samples().At(0)
	require.Equal(t, []uint64{start, start + window - 1}, s.TimestampsUnixNano().AsRaw())
}

func TestInvalidUTF8InNamesIsReplaced(t *testing.T) {
	b := newBatch()
	r := &samples.Resource{Attributes: []samples.Attribute{
		{Key: "", Value: "nameless"}, {Key: "bad\xff", Value: "\xfe"}, {Key: "flag", Value: true}, {Key: "list", Value: []string{"x"}},
	}}
	for _, name := range []string{"w\xff", "w\xfe", "w?"} {
		l := location(mappingOf("/bin/\xff"), 0x401000, "f\xff")
		b.Add(samples.Key{
			Resource: r, Type: samples.OnCPU, Period: period, Thread: samples.Thread{Name: name},
			Stack: &samples.Stack{Locations: []*samples.Location{l}},
		}, start)
	}
	got := build(t, options(), b)
	text := textOf(got[0].profiles)
	require.Contains(t, text, "map[bad?:? flag:true]")
	require.Contains(t, text, "/bin/?")
	require.Contains(t, text, "f? (f?)")
	require.Equal(t, 1, got[0].profiles.SampleCount(), "names that are equal after replacement are one")
}

func TestEmptyBatchYieldsNoRequest(t *testing.T) {
	require.Empty(t, build(t, options(), newBatch()))
}

func TestBuildStopsWhenItsLoopBreaks(t *testing.T) {
	b := NewBuilder(Options{MaxRequestBytes: 30_000, Rand: ids()})
	n := 0
	for range b.Build(load(5000, 20, 3)) {
		n++
		break
	}
	require.Equal(t, 1, n)
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("no entropy") }

func TestProfileHasNoIDIfTheRandomSourceFails(t *testing.T) {
	for p := range NewBuilder(Options{Rand: broken{}}).Build(load(1, 1, 1)) {
		found := conformancetest.Check(p, conformancetest.Options{})
		require.Len(t, found, 1)
		require.Equal(t, conformancetest.ProfileID, found[0].Rule)
	}
}

// load returns a batch that resembles the batch of a busy host. The batch has the given
// numbers of events, different stacks and resources. A stack has up to 40 frames.
func load(events, stacks, resources int) *samples.Batch {
	r := rand.New(rand.NewPCG(1, 2))
	b := newBatch()
	mappings := []*samples.Mapping{mappingOf("/bin/app"), mappingOf("/lib/libc.so.6"), mappingOf("[kernel.kallsyms]")}
	locations := make([]*samples.Location, 2000)
	for i := range locations {
		name := fmt.Sprintf("github.com/example/service/internal/package%d.(*Type).Method%d", i%37, i)
		names := []string{name}
		if i%4 == 0 {
			names = append(names, name+"Caller")
		}
		locations[i] = location(mappings[i%3], 0x400000+uint64(i)*64, names...)
	}
	all := make([]*samples.Stack, stacks)
	for i := range all {
		s := &samples.Stack{Truncated: i%16 == 0}
		at := r.IntN(len(locations))
		for range 5 + r.IntN(35) {
			s.Locations = append(s.Locations, locations[at])
			at = (at*31 + 7 + i) % len(locations)
		}
		all[i] = s
	}
	rs := make([]*samples.Resource, resources)
	for i := range rs {
		rs[i] = resource(i + 1)
	}
	for i := range events {
		stack := i % stacks
		b.Add(samples.Key{
			Resource: rs[stack%resources], Type: samples.OnCPU, Stack: all[stack], Period: period,
			Thread: samples.Thread{Name: fmt.Sprint("worker-", stack%4)},
		}, start+int64(i)*window/int64(events))
	}
	if b.Count() != events {
		panic("the load does not fit the batch")
	}
	return b
}
