// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package otlpprofiles

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/samples"
)

func managed(names ...string) *samples.Stack {
	s := &samples.Stack{}
	for _, n := range names {
		s.Locations = append(s.Locations, &samples.Location{Type: samples.FrameDotnet, Resolved: true, Lines: []samples.Line{{Function: n}}})
	}
	return s
}

func profilesOf(p pprofile.Profiles) (out []pprofile.Profile) {
	for _, rp := range p.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			for _, f := range sp.Profiles().All() {
				out = append(out, f)
			}
		}
	}
	return out
}

func TestDotnetSamplesKeepAllFields(t *testing.T) {
	const interval = 500_000_000
	b := newBatch()
	r := resource(0)
	stack := managed("Shop.Cart.Add(System.Int32)", "System.Threading.Thread.StartCallback()")
	span := samples.Link{TraceID: [16]byte{15: 1}, SpanID: [8]byte{7: 2}}
	threads := samples.Key{Resource: r, Type: samples.DotnetThreads, Stack: stack, Period: interval, Thread: samples.Thread{Name: ".NET TP Worker"}}
	add := func(k samples.Key, at, value int64) { require.True(t, b.AddValue(k, at, value)) }
	add(threads, start+1_000_000, interval)
	add(threads, start+501_000_000, interval)
	threads.Link = span
	threads.Selected, threads.Period = true, 50_000_000
	add(threads, start+501_000_000, 50_000_000)
	selected := samples.Key{Resource: r, Type: samples.DotnetSelected, Stack: stack, Period: 50_000_000, Selected: true, Link: span}
	add(selected, start+600_000_000, 50_000_000)
	objects := samples.Key{Resource: r, Type: samples.DotnetAllocObjects, Stack: stack, Period: 1, AllocType: "System.Byte[]", Link: span}
	space := objects
	space.Type = samples.DotnetAllocSpace
	for i, size := range []int64{24, 100_000, 24} {
		add(objects, start+int64(i)*1_000_000, 1)
		add(space, start+int64(i)*1_000_000, size)
	}
	add(samples.Key{Resource: r, Type: samples.OnCPU, Stack: stack, Period: period}, start+7, 0)

	got := build(t, options(), b)
	require.Len(t, got, 1)
	require.Equal(t, 11, got[0].events)
	const frames = `
  0x0 profile.frame.type=dotnet in 0x0-0x0+0x0 
    Shop.Cart.Add(System.Int32) () :0:0
  0x0 profile.frame.type=dotnet in 0x0-0x0+0x0 
    System.Threading.Thread.StartCallback() () :0:0
`
	want := `resource map[process.executable.name:app process.pid:0 service.name:checkout]
scope github.com/hotprofile/hotprofile 0.1.0
profile wall/nanoseconds period 500000000 wall/nanoseconds from -498999999 for 1000000000
sample thread.name=.NET TP Worker at [1000000] values [500000000]
sample thread.name=.NET TP Worker at [501000000] values [500000000]
profile wall/nanoseconds period 50000000 wall/nanoseconds from 451000001 for 50000000
sample thread.name=.NET TP Worker hotprofile.dotnet.selected=true at [501000000] values [50000000]
profile wall/nanoseconds period 50000000 wall/nanoseconds from 550000001 for 50000000
sample hotprofile.dotnet.selected=true at [600000000] values [50000000]
profile alloc_objects/count period 1 space/bytes from 0 for 2000001
sample hotprofile.alloc.type=System.Byte[] at [0] values [1]
sample hotprofile.alloc.type=System.Byte[] at [1000000] values [1]
sample hotprofile.alloc.type=System.Byte[] at [2000000] values [1]
profile alloc_space/bytes period 1 space/bytes from 0 for 2000001
sample hotprofile.alloc.type=System.Byte[] at [0] values [24]
sample hotprofile.alloc.type=System.Byte[] at [1000000] values [100000]
sample hotprofile.alloc.type=System.Byte[] at [2000000] values [24]
profile samples/count period 10309278 cpu/nanoseconds from 0 for 5000000000
sample at [7] values []
`
	require.Equal(t, want, strings.ReplaceAll(textOf(got[0].profiles), frames, "\n"))

	profiles := profilesOf(got[0].profiles)
	d := got[0].profiles.Dictionary()
	require.Equal(t, 2, d.LinkTable().Len())
	require.EqualValues(t, span.TraceID, d.LinkTable().At(1).TraceID())
	require.EqualValues(t, span.SpanID, d.LinkTable().At(1).SpanID())
	var linked []int32
	for _, p := range profiles[:2] {
		for _, s := range p.Samples().All() {
			linked = append(linked, s.LinkIndex())
		}
	}
	require.Equal(t, []int32{0, 0, 1}, linked)
	for i, want := range []string{"", "", "", "true", "true", ""} {
		got := ""
		for _, a := range profiles[i].AttributeIndices().All() {
			require.Equal(t, "hotprofile.unscaled", d.StringTable().At(int(d.AttributeTable().At(int(a)).KeyStrindex())))
			got = d.AttributeTable().At(int(a)).Value().AsString()
		}
		require.Equal(t, want, got)
	}
}

func TestLabelsOfAGoroutineAreAttributes(t *testing.T) {
	batch := newBatch()
	r, stack := resource(1), managed("main.main")
	for _, labels := range []string{"", "http.route\x00/a\x00", "http.route\x00/a\x00tenant\x00b\x00", "http.route\x00/a\x00"} {
		require.True(t, batch.Add(samples.Key{Resource: r, Type: samples.OnCPU, Stack: stack, Period: period, Labels: labels}, start))
	}
	p := build(t, options(), batch)[0].profiles
	var got []map[string]string
	for _, s := range profilesOf(p)[0].Samples().All() {
		of := make(map[string]string)
		for key, value := range dictionary.NewReader(p.Dictionary()).Attributes(s.AttributeIndices()) {
			of[key] = value.Str()
		}
		got = append(got, of)
	}
	require.Equal(t, []map[string]string{{}, {"http.route": "/a"}, {"http.route": "/a", "tenant": "b"}}, got)
}

func TestLinkWithoutBothIDsIsOmitted(t *testing.T) {
	b := newBatch()
	for _, l := range []samples.Link{{}, {TraceID: [16]byte{1}}, {SpanID: [8]byte{1}}} {
		b.Add(samples.Key{Resource: resource(0), Type: samples.DotnetThreads, Stack: managed("F()"), Period: 1, Link: l}, start)
	}
	got := build(t, options(), b)
	require.Equal(t, 1, got[0].profiles.Dictionary().LinkTable().Len())
}

// TestWindowOfSentSamplesIsThatOfTheirTimes checks that the window covers the times of
// the samples, and ignores the window of the batch. If a sender has a steady rate, there
// must be no gaps between its windows.
func TestWindowOfSentSamplesIsThatOfTheirTimes(t *testing.T) {
	const interval, ago = 1_000_000_000, 3_600_000_000_000
	end, r := int64(0), resource(0)
	for i := range 3 {
		b := newBatch()
		for j := range 4 {
			at := start - ago + int64(4*i+j)*interval
			b.Add(samples.Key{Resource: r, Type: samples.DotnetThreads, Stack: managed("F()"), Period: interval}, at)
		}
		p := profilesOf(build(t, options(), b)[0].profiles)[0]
		require.EqualValues(t, 4*interval, p.DurationNano())
		if i > 0 {
			require.EqualValues(t, end, p.Time())
		}
		end = int64(p.Time()) + int64(p.DurationNano())
		require.EqualValues(t, start-ago+int64(4*i+3)*interval+1, end)
	}
	b := newBatch()
	b.Add(samples.Key{Resource: resource(0), Type: samples.DotnetThreads, Stack: managed("F()"), Period: interval}, 5)
	require.EqualValues(t, 1, profilesOf(build(t, options(), b)[0].profiles)[0].Time(), "never before 1970")
}

func TestBulkValuedOutputIsSplitAtTheLimitsWithoutLoss(t *testing.T) {
	for name, opts := range map[string]Options{
		"samples per profile": {MaxSamples: 100},
		"bytes per profile":   {MaxProfileBytes: 4000},
		"bytes per request":   {MaxRequestBytes: 30_000},
		"all of them":         {MaxSamples: 5, MaxProfileBytes: 2000, MaxRequestBytes: 20_000},
		"the defaults":        {},
	} {
		t.Run(name, func(t *testing.T) {
			const n = 20_000
			b := newBatch()
			resources := []*samples.Resource{resource(1), resource(2), resource(3)}
			want, sum := int64(0), int64(0)
			for i := range n {
				k := samples.Key{
					Resource: resources[i%3], Type: samples.DotnetAllocSpace, Stack: managed(fmt.Sprint("F", i%50), "G()"), Period: 1,
					AllocType: fmt.Sprint("T", i%7), Link: samples.Link{TraceID: [16]byte{byte(i), 1}, SpanID: [8]byte{1}},
				}
				require.True(t, b.AddValue(k, start+int64(i), int64(i)))
				want += int64(i)
			}
			opts.Rand = ids()
			events := 0
			for _, r := range build(t, opts, b) {
				events += r.events
				for _, p := range profilesOf(r.profiles) {
					for _, s := range p.Samples().All() {
						sum += s.Values().At(0)
					}
				}
			}
			require.Equal(t, n, events)
			require.Equal(t, want, sum)
		})
	}
}

// TestLabelsAreCutAtTheLimitOfBackends checks that very long names are truncated. The names
// of a program's types and managed threads may have any length.
func TestLabelsAreCutAtTheLimitOfBackends(t *testing.T) {
	long := strings.Repeat("é", 2000) // 4000 bytes
	b := newBatch()
	k := samples.Key{Resource: resource(0), Type: samples.DotnetAllocSpace, Stack: managed("F()"), Period: 1, AllocType: "x" + long, Thread: samples.Thread{Name: long}}
	require.True(t, b.AddValue(k, start, 1))
	got := build(t, options(), b) // also checks the rules of backends
	var cut []string
	for _, a := range got[0].profiles.Dictionary().AttributeTable().All() {
		if v := a.Value().AsString(); strings.Contains(v, "é") {
			cut = append(cut, v)
		}
	}
	require.Equal(t, []string{strings.Repeat("é", 1024), "x" + strings.Repeat("é", 1023)}, cut)
}
