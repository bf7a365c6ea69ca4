// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/conformance"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// rich is a batch of several resources and types, with links, sample attributes
// of every kind, scopes and units.
func rich(t testing.TB) pprofile.Profiles {
	t.Helper()
	p := inContainer(containerA)
	p.types = []*samples.Type{samples.OnCPU, offCPU}
	pd := batch(t, epoch, inService(), p, inContainer(containerB))
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

// split keeps the profiles that a test asks for, by their number in order.
func split(pd pprofile.Profiles, fateOf func(profile int) fate) pprofile.Profiles {
	var picks []pick
	n := 0
	for ri, rp := range pd.ResourceProfiles().All() {
		for si, sp := range rp.ScopeProfiles().All() {
			for pi := range sp.Profiles().Len() {
				if f := fateOf(n); f != dropped {
					picks = append(picks, pick{resource: int32(ri), scope: int32(si), profile: int32(pi), restamp: f == stamped})
				}
				n++
			}
		}
	}
	return (&subset{}).split(pd, picks)
}

func scopes(pd pprofile.Profiles) (out []pprofile.ScopeProfiles) {
	for _, rp := range pd.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			out = append(out, sp)
		}
	}
	return out
}

// resolved is a profile with every index replaced by what it stands for, so that
// two dictionaries can be compared by what they mean.
func resolved(d pprofile.ProfilesDictionary, rp pprofile.ResourceProfiles, sp pprofile.ScopeProfiles, p pprofile.Profile) map[string]any {
	str := func(i int32) string { return d.StringTable().At(int(i)) }
	attributes := func(indices pcommon.Int32Slice) (out []any) {
		for _, i := range indices.All() {
			a := d.AttributeTable().At(int(i))
			out = append(out, []any{str(a.KeyStrindex()), a.Value().AsRaw(), str(a.UnitStrindex())})
		}
		return out
	}
	valueType := func(v pprofile.ValueType) string { return str(v.TypeStrindex()) + "/" + str(v.UnitStrindex()) }
	mapping := func(i int32) []any {
		m := d.MappingTable().At(int(i))
		return []any{m.MemoryStart(), m.MemoryLimit(), m.FileOffset(), str(m.FilenameStrindex()), attributes(m.AttributeIndices())}
	}
	location := func(i int32) []any {
		l := d.LocationTable().At(int(i))
		out := []any{l.Address(), mapping(l.MappingIndex()), attributes(l.AttributeIndices())}
		for _, line := range l.Lines().All() {
			f := d.FunctionTable().At(int(line.FunctionIndex()))
			out = append(out, []any{
				line.Line(), line.Column(), str(f.NameStrindex()), str(f.SystemNameStrindex()), str(f.FilenameStrindex()), f.StartLine(),
			})
		}
		return out
	}
	var all []any
	for _, s := range p.Samples().All() {
		var stack []any
		for _, i := range d.StackTable().At(int(s.StackIndex())).LocationIndices().All() {
			stack = append(stack, location(i))
		}
		link := d.LinkTable().At(int(s.LinkIndex()))
		all = append(all, []any{
			stack, attributes(s.AttributeIndices()), s.Values().AsRaw(), s.TimestampsUnixNano().AsRaw(), link.TraceID(), link.SpanID(),
		})
	}
	return map[string]any{
		"resource": rp.Resource().Attributes().AsRaw(), "resource dropped": rp.Resource().DroppedAttributesCount(), "resource schema": rp.SchemaUrl(),
		"scope": sp.Scope().Name() + sp.Scope().Version(), "scope attributes": sp.Scope().Attributes().AsRaw(), "scope schema": sp.SchemaUrl(),
		"id": p.ProfileID(), "time": p.Time(), "duration": p.DurationNano(), "period": p.Period(),
		"type": valueType(p.SampleType()), "period type": valueType(p.PeriodType()),
		"attributes": attributes(p.AttributeIndices()), "payload": p.OriginalPayload().AsRaw(), "format": p.OriginalPayloadFormat(),
		"dropped": p.DroppedAttributesCount(), "samples": all,
	}
}

func resolvedAll(pd pprofile.Profiles) (out []map[string]any) {
	for _, rp := range pd.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			for _, p := range sp.Profiles().All() {
				out = append(out, resolved(pd.Dictionary(), rp, sp, p))
			}
		}
	}
	return out
}

// structural are the rules that a split cannot break on its own but for its
// dictionary: what the test's odd attributes break is no matter here.
var structural = []conformance.Rule{
	conformance.ZeroEntry, conformance.Orphan, conformance.Duplicate, conformance.IndexRange, conformance.NoStack, conformance.NoSamples,
}

func checkDictionary(t *testing.T, pd pprofile.Profiles) {
	t.Helper()
	for _, v := range conformance.Check(pd, conformance.Options{}) {
		for _, rule := range structural {
			require.NotEqual(t, rule, v.Rule, "%s", v)
		}
	}
}

// TestSplitMeansTheSame takes every subset of the profiles of a batch.
func TestSplitMeansTheSame(t *testing.T) {
	src := rich(t)
	whole := resolvedAll(src)
	checkDictionary(t, src)
	src.MarkReadOnly()
	for set := range 1 << len(whole) {
		keep := func(i int) fate {
			if set&(1<<i) != 0 {
				return kept
			}
			return dropped
		}
		got := split(src, keep)
		var want []map[string]any
		for i := range whole {
			if keep(i) != dropped {
				want = append(want, whole[i])
			}
		}
		require.Equal(t, want, resolvedAll(got), "subset %b", set)
		checkDictionary(t, got)
		require.Equal(t, marshalled(t, got), marshalled(t, split(src, keep)), "the same batch is split the same way")
	}
}

func TestSplitSharesNothingWithItsSource(t *testing.T) {
	src := rich(t)
	before := resolvedAll(src)
	out := split(src, func(int) fate { return kept })
	for _, sp := range scopes(out) {
		for _, p := range sp.Profiles().All() {
			p.Samples().At(0).TimestampsUnixNano().SetAt(0, 1)
			p.AttributeIndices().SetAt(0, 0)
		}
	}
	out.Dictionary().StringTable().SetAt(3, "changed")
	out.ResourceProfiles().At(0).Resource().Attributes().PutStr("service.name", "changed")
	require.Equal(t, before, resolvedAll(src))
}

// TestSplitLeavesReferencesBehind: attributes that were received as references
// into the source's dictionary must not refer to the new one.
func TestSplitLeavesReferencesBehind(t *testing.T) {
	wire, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(batch(t, epoch, inService(), inContainer(containerA)))
	require.NoError(t, err)
	src, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(wire)
	require.NoError(t, err)
	want := resolvedAll(src)[1]
	out := split(src, func(i int) fate { return fate(i) * kept })
	wire, err = (&pprofile.ProtoMarshaler{}).MarshalProfiles(out)
	require.NoError(t, err)
	again, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(wire)
	require.NoError(t, err)
	require.Equal(t, want, resolvedAll(again)[0])
	require.Equal(t, containerA, want["resource"].(map[string]any)["container.id"])
}

// FuzzSplit has indices that point anywhere: nothing panics, and what comes out
// is in order.
func FuzzSplit(f *testing.F) {
	f.Add(uint64(1), uint8(0b10))
	f.Add(uint64(7), uint8(0b1111))
	f.Fuzz(func(t *testing.T, seed uint64, set uint8) {
		src := rich(t)
		r := rand.New(rand.NewPCG(seed, 1))
		scramble(src, r)
		out := split(src, func(i int) fate {
			if set&(1<<i) != 0 {
				return stamped
			}
			return dropped
		})
		for _, v := range conformance.Check(out, conformance.Options{}) {
			require.NotEqual(t, conformance.IndexRange, v.Rule, "%s", v)
			require.NotEqual(t, conformance.Orphan, v.Rule, "%s", v)
			require.NotEqual(t, conformance.ZeroEntry, v.Rule, "%s", v)
		}
	})
}

// scramble points some of a batch's indices somewhere else.
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

func TestStampingAddsEachAttributeOnce(t *testing.T) {
	r := newRig(t, "")
	r.fire(containerA)
	p := inContainer(containerA)
	p.types = []*samples.Type{samples.OnCPU, offCPU}
	pd := batch(t, r.now.Add(time.Second), p, p, p)
	strings, attributes := pd.Dictionary().StringTable().Len(), pd.Dictionary().AttributeTable().Len()
	require.NoError(t, r.send(pd))
	out := r.sink.AllProfiles()[0]
	require.Len(t, allProfiles(out), 6)
	require.Equal(t, strings+10, out.Dictionary().StringTable().Len(), "ten keys")
	require.Equal(t, attributes+10, out.Dictionary().AttributeTable().Len())
	checkDictionary(t, out)
}
