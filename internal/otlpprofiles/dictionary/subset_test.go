// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dictionary_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

// counter generates bytes for ids. All ids are different, and every run generates the
// same ids.
type counter struct{ n uint64 }

func (c *counter) Read(b []byte) (int, error) {
	c.n++
	binary.BigEndian.PutUint64(b[len(b)-8:], c.n)
	return len(b), nil
}

var offCPU = &samples.Type{Name: "off_cpu", Unit: "nanoseconds", PeriodName: "off_cpu", PeriodUnit: "nanoseconds"}

// built returns a request with three resources. The second resource has two profiles, and
// each of the other resources has one profile. The resources share some code.
func built(t testing.TB) pprofile.Profiles {
	t.Helper()
	b := samples.NewBatch(16 << 20)
	start := time.Date(2026, 5, 28, 20, 27, 12, 0, time.UTC)
	b.Start, b.End = start.UnixNano(), start.Add(5*time.Second).UnixNano()
	libc := &samples.Mapping{Start: 0x1000, Limit: 0x2000, Path: "/lib/libc.so.6", BuildID: "aabb"}
	shared := &samples.Location{Type: samples.FrameNative, Mapping: libc, Address: 0x1100, Resolved: true, Lines: []samples.Line{{Function: "start_thread", File: "pthread.c", Line: 7}}}
	for i, types := range [][]*samples.Type{{samples.OnCPU}, {samples.OnCPU, offCPU}, {samples.OnCPU}} {
		r := &samples.Resource{PID: i + 1, Attributes: []samples.Attribute{
			{Key: "container.id", Value: container(i)},
			{Key: "process.executable.name", Value: "app"},
			{Key: "process.pid", Value: int64(100 + i)},
		}}
		own := &samples.Mapping{Start: 0x400000, Limit: 0x500000, Path: fmt.Sprintf("/bin/app%d", i), BuildID: fmt.Sprintf("cc%02x", i)}
		for _, typ := range types {
			for n := range 6 {
				leaf := &samples.Location{Type: samples.FrameGo, Mapping: own, Address: 0x400100 + uint64(n%3), Leaf: true, Resolved: true, Lines: []samples.Line{
					{Function: fmt.Sprintf("inlined%d", i), File: "a.go", Line: int64(n % 3)}, {Function: fmt.Sprintf("work%d.%d", i, n%3), File: "a.go", Line: 12},
				}}
				stack := &samples.Stack{Locations: []*samples.Location{leaf, shared}, Truncated: n%2 == 0}
				require.True(t, b.Add(samples.Key{
					Resource: r, Type: typ, Stack: stack, Period: 10_309_278, Thread: samples.Thread{Name: fmt.Sprintf("thread%d.%d", i, n%2)},
				}, b.Start+int64(n+1)*int64(time.Millisecond)))
			}
		}
	}
	var out []pprofile.Profiles
	for pd := range otlpprofiles.NewBuilder(otlpprofiles.Options{ScopeName: "test", Rand: &counter{}}).Build(b) {
		out = append(out, pd)
	}
	require.Len(t, out, 1)
	return out[0]
}

func container(i int) string { return strings.Repeat(fmt.Sprintf("%02x", 0xa0+i), 32) }

// rich returns the same request as built, but with links, all kinds of attributes, scopes
// and units.
func rich(t testing.TB) pprofile.Profiles {
	t.Helper()
	pd := built(t)
	d := pd.Dictionary()
	str := func(s string) int32 {
		d.StringTable().Append(s)
		return int32(d.StringTable().Len() - 1)
	}
	unit := str("milliseconds")
	for i, sp := range scopes(pd) {
		sp.SetSchemaUrl("https://example.org/scope")
		sp.Scope().SetVersion("1.2")
		sp.Scope().Attributes().PutInt("scope", int64(i))
		for _, p := range sp.Profiles().All() {
			n := d.AttributeTable().Len()
			key := str(fmt.Sprintf("profile attribute %d", n))
			a := d.AttributeTable().AppendEmpty()
			a.SetKeyStrindex(key)
			a.SetUnitStrindex(unit)
			require.NoError(t, a.Value().FromRaw([]any{int64(n), "list", map[string]any{"deep": true}}))
			p.AttributeIndices().Append(int32(d.AttributeTable().Len() - 1))
			for _, s := range p.Samples().All() {
				l := d.LinkTable().AppendEmpty()
				l.SetTraceID(pcommon.TraceID{byte(d.LinkTable().Len()), 1})
				l.SetSpanID(pcommon.SpanID{byte(d.LinkTable().Len()), 2})
				s.SetLinkIndex(int32(d.LinkTable().Len() - 1))
			}
		}
	}
	for i, rp := range pd.ResourceProfiles().All() {
		rp.SetSchemaUrl("https://example.org/resource")
		rp.Resource().SetDroppedAttributesCount(uint32(i))
		rp.Resource().Attributes().PutEmptySlice("list").AppendEmpty().SetStr("x")
	}
	return pd
}

// subset copies the profiles for which keep returns true. The argument of keep is the
// position of the profile in the request.
func subset(pd pprofile.Profiles, keep func(profile int) bool) pprofile.Profiles {
	return new(dictionary.Subset).Copy(pd, refs(pd, keep))
}

func refs(pd pprofile.Profiles, keep func(profile int) bool) (refs []*dictionary.ProfileRef) {
	n := 0
	for ref := range dictionary.All(pd) {
		if keep(n) {
			refs = append(refs, &ref)
		}
		n++
	}
	return refs
}

func marshalled(t *testing.T, pd pprofile.Profiles) string {
	t.Helper()
	b, err := (&pprofile.JSONMarshaler{}).MarshalProfiles(pd)
	require.NoError(t, err)
	return string(b)
}

func scopes(pd pprofile.Profiles) (out []pprofile.ScopeProfiles) {
	for _, rp := range pd.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			out = append(out, sp)
		}
	}
	return out
}

// TestSubsetHasTheSameContents copies every subset of the profiles of a request.
func TestSubsetHasTheSameContents(t *testing.T) {
	src := rich(t)
	whole := conformancetest.Contents(src)
	conformancetest.CheckDictionary(t, src)
	src.MarkReadOnly()
	for set := range 1 << len(whole) {
		keep := func(i int) bool { return set&(1<<i) != 0 }
		got := subset(src, keep)
		var want []map[string]any
		for i := range whole {
			if keep(i) {
				want = append(want, whole[i])
			}
		}
		require.Equal(t, want, conformancetest.Contents(got), "subset %b", set)
		conformancetest.CheckDictionary(t, got)
		require.Equal(t, marshalled(t, got), marshalled(t, subset(src, keep)), "the same subset has the same bytes")
	}
}

func TestSubsetSharesNothingWithItsSource(t *testing.T) {
	src := rich(t)
	before := conformancetest.Contents(src)
	out := subset(src, func(int) bool { return true })
	for _, sp := range scopes(out) {
		for _, p := range sp.Profiles().All() {
			p.Samples().At(0).TimestampsUnixNano().SetAt(0, 1)
			p.AttributeIndices().SetAt(0, 0)
		}
	}
	out.Dictionary().StringTable().SetAt(3, "changed")
	out.ResourceProfiles().At(0).Resource().Attributes().PutStr("service.name", "changed")
	require.Equal(t, before, conformancetest.Contents(src))
}

// TestSubsetResolvesReferencedAttributes covers received attributes that
// refer to the dictionary of the source. The attributes of the copy must not
// refer to the new dictionary.
func TestSubsetResolvesReferencedAttributes(t *testing.T) {
	wire, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(built(t))
	require.NoError(t, err)
	src, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(wire)
	require.NoError(t, err)
	want := conformancetest.Contents(src)[1]
	out := subset(src, func(i int) bool { return i == 1 })
	wire, err = (&pprofile.ProtoMarshaler{}).MarshalProfiles(out)
	require.NoError(t, err)
	again, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(wire)
	require.NoError(t, err)
	require.Equal(t, want, conformancetest.Contents(again)[0])
	require.Equal(t, container(1), want["resource"].(map[string]any)["container.id"])
}

func TestSubsetStripsAttributesOfProfiles(t *testing.T) {
	src := rich(t)
	all := refs(src, func(int) bool { return true })
	all[1].Strip = true
	s := &dictionary.Subset{Strip: func(key string) bool { return strings.HasPrefix(key, "profile attribute ") }}
	out := s.Copy(src, all)
	conformancetest.CheckDictionary(t, out)
	before, after := conformancetest.Contents(src), conformancetest.Contents(out)
	require.Empty(t, after[1]["attributes"])
	require.NotEmpty(t, before[1]["attributes"])
	delete(before[1], "attributes")
	delete(after[1], "attributes")
	require.Equal(t, before, after, "nothing else is removed")
}

// TestSubsetIsUsedAgain copies from several requests with the same Subset.
func TestSubsetIsUsedAgain(t *testing.T) {
	s := &dictionary.Subset{}
	for range 3 {
		src := rich(t)
		for keep := range 4 {
			out := s.Copy(src, refs(src, func(i int) bool { return i == keep }))
			require.Equal(t, conformancetest.Contents(src)[keep:keep+1], conformancetest.Contents(out))
			conformancetest.CheckDictionary(t, out)
		}
	}
}

// FuzzSubset copies from requests whose indices may be out of range.
func FuzzSubset(f *testing.F) {
	f.Add(uint64(1), uint8(0b10))
	f.Add(uint64(7), uint8(0b1111))
	f.Fuzz(func(t *testing.T, seed uint64, set uint8) {
		src := rich(t)
		r := rand.New(rand.NewPCG(seed, 1))
		scramble(src, r)
		kept := refs(src, func(i int) bool { return set&(1<<i) != 0 })
		for i := range kept {
			kept[i].Strip = true
		}
		out := (&dictionary.Subset{Strip: func(key string) bool { return strings.HasPrefix(key, "profile") }}).Copy(src, kept)
		for _, v := range conformancetest.Check(out, conformancetest.Options{}) {
			require.NotEqual(t, conformancetest.IndexRange, v.Rule, "%s", v)
			require.NotEqual(t, conformancetest.Orphan, v.Rule, "%s", v)
			require.NotEqual(t, conformancetest.ZeroEntry, v.Rule, "%s", v)
		}
	})
}

// scramble replaces some of a request's indices.
func scramble(pd pprofile.Profiles, r *rand.Rand) {
	anywhere := func() int32 {
		switch r.IntN(3) {
		case 0:
			return -r.Int32()
		case 1:
			return r.Int32()
		}
		return r.Int32N(40)
	}
	list := func(s pcommon.Int32Slice) {
		for i := range s.Len() {
			if r.IntN(4) == 0 {
				s.SetAt(i, anywhere())
			}
		}
	}
	d := pd.Dictionary()
	for _, sp := range scopes(pd) {
		for _, p := range sp.Profiles().All() {
			list(p.AttributeIndices())
			p.SampleType().SetUnitStrindex(anywhere())
			for _, s := range p.Samples().All() {
				list(s.AttributeIndices())
				s.SetLinkIndex(anywhere())
				s.SetStackIndex(anywhere())
			}
		}
	}
	for _, s := range d.StackTable().All() {
		list(s.LocationIndices())
	}
	for _, l := range d.LocationTable().All() {
		if r.IntN(4) == 0 {
			l.SetMappingIndex(anywhere())
		}
		list(l.AttributeIndices())
	}
	for _, m := range d.MappingTable().All() {
		list(m.AttributeIndices())
		m.SetFilenameStrindex(anywhere())
	}
	for _, a := range d.AttributeTable().All() {
		if r.IntN(4) == 0 {
			a.SetKeyStrindex(anywhere())
		}
	}
}
