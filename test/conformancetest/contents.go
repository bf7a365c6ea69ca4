// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package conformancetest

import (
	"slices"
	"testing"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
)

// Contents returns the profiles of a request. Each index is replaced with the entry that
// it refers to, so that requests with different dictionaries can be compared.
func Contents(pd pprofile.Profiles) (out []map[string]any) {
	for _, rp := range pd.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			for _, p := range sp.Profiles().All() {
				out = append(out, content(pd.Dictionary(), rp, sp, p))
			}
		}
	}
	return out
}

// content returns the contents of one profile.
func content(d pprofile.ProfilesDictionary, rp pprofile.ResourceProfiles, sp pprofile.ScopeProfiles, p pprofile.Profile) map[string]any {
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

// CheckDictionary fails the test if the dictionary of a request or a reference to it
// breaks a rule. It does not check other rules.
func CheckDictionary(t testing.TB, pd pprofile.Profiles, opts ...Options) {
	t.Helper()
	rules := []Rule{ZeroEntry, Orphan, Duplicate, IndexRange, NoStack, NoSamples}
	for _, v := range Check(pd, append(opts, Options{})[0]) {
		if slices.Contains(rules, v.Rule) {
			t.Errorf("%s", v)
		}
	}
}
