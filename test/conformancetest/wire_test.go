// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package conformancetest_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/inline"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

// marshalled returns the bytes of a request with inline attributes.
func marshalled(t testing.TB, p pprofile.Profiles) []byte {
	t.Helper()
	b, err := inline.Request(referenced(t, p))
	require.NoError(t, err)
	return b
}

// referenced returns the bytes of a request with references, in the form that the newest
// exporters send. It does not change p.
func referenced(t testing.TB, p pprofile.Profiles) []byte {
	t.Helper()
	p.MarkReadOnly() // marshalling changes profiles that are not read-only
	b, err := pprofileotlp.NewExportRequestFromProfiles(p).MarshalProto()
	require.NoError(t, err)
	return b
}

// strictWithReferences is like strict, but for a request with references.
func strictWithReferences() conformancetest.Options {
	opts := strict()
	opts.References = true
	return opts
}

// linked returns a good request with a span.
func linked() pprofile.Profiles {
	p := good()
	l := p.Dictionary().LinkTable().AppendEmpty()
	l.SetTraceID([16]byte{1})
	l.SetSpanID([8]byte{1})
	sample(p).SetLinkIndex(1)
	return p
}

// rewrite applies edit to the message at a path of field numbers. If a number occurs
// several times, the path uses the first field.
func rewrite(t testing.TB, body []byte, edit func([]byte) []byte, path ...protowire.Number) []byte {
	t.Helper()
	if len(path) == 0 {
		return edit(slices.Clone(body))
	}
	var out []byte
	done := false
	for rest := body; len(rest) > 0; {
		n, typ, size := protowire.ConsumeTag(rest)
		require.Positive(t, size)
		length := protowire.ConsumeFieldValue(n, typ, rest[size:])
		require.GreaterOrEqual(t, length, 0)
		whole := rest[:size+length]
		rest = rest[size+length:]
		if n != path[0] || done {
			out = append(out, whole...)
			continue
		}
		done = true
		content, _ := protowire.ConsumeBytes(whole[size:])
		out = protowire.AppendTag(out, n, protowire.BytesType)
		out = protowire.AppendBytes(out, rewrite(t, content, edit, path[1:]...))
	}
	require.True(t, done, "no field %d", path[0])
	return out
}

// without removes all fields that have the number.
func without(drop protowire.Number) func([]byte) []byte {
	return func(body []byte) (out []byte) {
		for len(body) > 0 {
			n, _, size := protowire.ConsumeField(body)
			if n != drop {
				out = append(out, body[:size]...)
			}
			body = body[size:]
		}
		return out
	}
}

func plus(n protowire.Number, typ protowire.Type, value []byte) func([]byte) []byte {
	return func(body []byte) []byte {
		return append(protowire.AppendTag(body, n, typ), value...)
	}
}

// These are the paths of messages in a request.
var (
	resourceAttribute = []protowire.Number{1, 1, 1}
	resourceValue     = []protowire.Number{1, 1, 1, 2}
	firstProfile      = []protowire.Number{1, 2, 2}
	firstSample       = []protowire.Number{1, 2, 2, 2}
	dictionary        = []protowire.Number{2}
)

// wireDamage changes the bytes of a good request in a way that breaks one rule. where is
// a part of the violation's text.
type wireDamage struct {
	name  string
	rule  conformancetest.Rule
	where string
	do    func(t testing.TB, body []byte) []byte
}

// at returns a function that applies edits to the message at a path.
func at(path []protowire.Number, edits ...func([]byte) []byte) func(testing.TB, []byte) []byte {
	return func(t testing.TB, body []byte) []byte {
		for _, edit := range edits {
			body = rewrite(t, body, edit, path...)
		}
		return body
	}
}

// wireDamages returns faults that get lost when the request is decoded. The
// request has inline attributes.
func wireDamages() []wireDamage {
	one := protowire.AppendVarint(nil, 1)
	short := protowire.AppendBytes(nil, []byte{1, 2, 3})
	return []wireDamage{
		{"a key by reference", conformancetest.InlineAttributes, "attributes 0, key_strindex", at(resourceAttribute, without(1), plus(3, protowire.VarintType, one))},
		{"a value by reference", conformancetest.InlineAttributes, "attributes 0, value, string_value_strindex", at(resourceValue, without(1), plus(8, protowire.VarintType, one))},
		{"a key inline and by reference", conformancetest.OneForm, "attributes 0 has both key and key_strindex", at(resourceAttribute, plus(3, protowire.VarintType, one))},
		{"a profile field of another release", conformancetest.WireFormat, "profiles 0 has a field 12", at(firstProfile, plus(12, protowire.VarintType, one))},
		{"a table of another release", conformancetest.WireFormat, "dictionary has a field 8", at(dictionary, plus(8, protowire.BytesType, short))},
		{"no dictionary", conformancetest.EmptyRequest, "no dictionary", at(nil, without(2))},
		{"two dictionaries", conformancetest.WireFormat, "dictionary is there twice", at(nil, plus(2, protowire.BytesType, protowire.AppendBytes(nil, nil)))},
		{"a number where a message belongs", conformancetest.WireFormat, "wire type 0, want 2", at(firstProfile, without(1), plus(1, protowire.VarintType, one))},
		{"a message cut short", conformancetest.WireFormat, "samples 0, field ", at(firstSample, func(b []byte) []byte { return b[:len(b)-1] })},
		{"timestamps cut short", conformancetest.WireFormat, "timestamps_unix_nano has 3 bytes", at(firstSample, without(5), plus(5, protowire.BytesType, short))},
		{"a varint without an end", conformancetest.WireFormat, "attribute_indices", at(firstSample, without(2), plus(2, protowire.BytesType, protowire.AppendBytes(nil, []byte{0x80})))},
		{"bytes behind the request", conformancetest.WireFormat, "the request", at(nil, func(b []byte) []byte { return append(b, 0) })},
		{"a profile id of 3 bytes", conformancetest.ProfileID, "profile_id has 3 bytes, want 16", at(firstProfile, without(7), plus(7, protowire.BytesType, short))},
		{"a trace id of 3 bytes", conformancetest.LinkIDs, "trace_id has 3 bytes, want 16", at([]protowire.Number{2, 4}, without(1), plus(1, protowire.BytesType, short))},
		{"a span id of 3 bytes", conformancetest.LinkIDs, "span_id has 3 bytes, want 8", at([]protowire.Number{2, 4}, without(2), plus(2, protowire.BytesType, short))},
		{"a scope name that is not UTF-8", conformancetest.UTF8, "scope, name", at([]protowire.Number{1, 2, 1}, plus(1, protowire.BytesType, protowire.AppendBytes(nil, []byte{0xff})))},
		{"a string that is not UTF-8", conformancetest.UTF8, `string_table`, at(dictionary, plus(5, protowire.BytesType, protowire.AppendBytes(nil, []byte{0xff})))},
	}
}

// referencedDamages returns faults of a request with references. These faults are also
// lost when the request is decoded.
func referencedDamages() []wireDamage {
	one := protowire.AppendVarint(nil, 1)
	name := protowire.AppendString(nil, "service.name")
	return []wireDamage{
		{"an inline key", conformancetest.ReferencedAttributes, "attributes 0, key is inline", at(resourceAttribute, without(3), plus(1, protowire.BytesType, name))},
		{"an inline string", conformancetest.ReferencedAttributes, "attributes 0, value, string_value is inline", at(resourceValue, without(8), plus(1, protowire.BytesType, name))},
		{"every attribute inline", conformancetest.ReferencedAttributes, "attributes 0, key is inline", func(t testing.TB, body []byte) []byte {
			inlined, err := inline.Request(body)
			require.NoError(t, err)
			return inlined
		}},
		{"a key by reference and inline", conformancetest.OneForm, "attributes 0 has both key and key_strindex", at(resourceAttribute, plus(1, protowire.BytesType, name))},
		{"a string by reference and inline", conformancetest.OneForm, "value has both string_value and string_value_strindex", at(resourceValue, plus(1, protowire.BytesType, name))},
		{
			"a reference in the dictionary's attributes", conformancetest.InlineAttributes, "attribute_table 0, value, string_value_strindex",
			at([]protowire.Number{2, 6, 2}, plus(8, protowire.VarintType, one)),
		},
	}
}

func TestValidRequestBreaksNoRule(t *testing.T) {
	for _, p := range []pprofile.Profiles{good(), linked()} {
		require.Empty(t, conformancetest.CheckRequest(marshalled(t, p), strict()))
		require.Empty(t, conformancetest.CheckRequest(referenced(t, p), strictWithReferences()))
	}
}

func TestFaultsLostInDecodingAreReported(t *testing.T) {
	for _, tc := range wireDamages() {
		tc.isReported(t, marshalled(t, linked()), strict())
	}
	for _, tc := range referencedDamages() {
		tc.isReported(t, referenced(t, linked()), strictWithReferences())
	}
}

// isReported checks that the checker reports the fault exactly once.
func (tc wireDamage) isReported(t *testing.T, body []byte, opts conformancetest.Options) {
	t.Run(tc.name, func(t *testing.T) {
		damaged := tc.do(t, body)
		require.False(t, bytes.Equal(body, damaged))
		var where []string
		for _, v := range conformancetest.CheckRequest(damaged, opts) {
			t.Log(v)
			if v.Rule == tc.rule {
				where = append(where, v.Where)
			}
		}
		require.Len(t, where, 1)
		require.Contains(t, where[0], tc.where)
	})
}

// TestEachRuleIsReportedForARequest checks that CheckRequest
// reports the same faults as Check.
func TestEachRuleIsReportedForARequest(t *testing.T) {
	for _, tc := range damages() {
		t.Run(tc.name, func(t *testing.T) {
			p := good()
			tc.do(p)
			// The request has references, because inlining would
			// reject or repair some of the faults.
			var got []conformancetest.Rule
			for _, v := range conformancetest.CheckRequest(referenced(t, p), strictWithReferences()) {
				got = append(got, v.Rule)
			}
			require.Contains(t, got, tc.rule)
		})
	}
}

func TestEveryRuleHasATestThatBreaksIt(t *testing.T) {
	broken := map[conformancetest.Rule]bool{}
	for _, tc := range damages() {
		broken[tc.rule] = true
	}
	for _, tc := range append(wireDamages(), referencedDamages()...) {
		broken[tc.rule] = true
	}
	names := map[string]bool{}
	for _, r := range conformancetest.Rules() {
		require.True(t, broken[r], "nothing breaks %s", r.Name)
		require.False(t, names[r.Name], "two rules are named %s", r.Name)
		names[r.Name] = true
		delete(broken, r)
	}
	require.Empty(t, broken, "rules missing in Rules")
}

// TestSplitRequestsMayHaveOrphans covers requests that an exporter has split. Each part
// of such a request contains the whole dictionary.
func TestSplitRequestsMayHaveOrphans(t *testing.T) {
	p := good()
	addString(p, "of another part")
	require.Len(t, conformancetest.Check(p, strict()), 1)
	opts := strict()
	opts.Split = true
	conformancetest.CheckFatal(t, p, opts)
	addString(p, string(make([]byte, 4<<20)))
	found := conformancetest.Check(p, opts)
	require.Len(t, found, 1)
	require.Equal(t, conformancetest.MaxRequestBytes, found[0].Rule)
}

func TestNotShown(t *testing.T) {
	for _, tc := range []struct {
		sample, period string
		refused        []string
		known          bool
	}{
		{"samples/count", "cpu/nanoseconds", nil, true},
		{"wall/nanoseconds", "wall/nanoseconds", []string{"Elastic", "Splunk"}, true},
		{"samples/count", "wall/nanoseconds", []string{"Elastic", "Splunk"}, true},
		{"off_cpu/nanoseconds", "context_switches/count", []string{"Elastic", "Splunk"}, true},
		{"runqueue/nanoseconds", "context_switches/count", []string{"Elastic", "Splunk"}, true},
		{"alloc_objects/count", "space/bytes", []string{"Elastic"}, true},
		{"alloc_space/bytes", "space/bytes", []string{"Elastic"}, true},
		{"samples/count", "heat/joules", nil, false},
		{"heat/joules", "cpu/nanoseconds", nil, false},
	} {
		refused, known := conformancetest.NotShown(tc.sample, tc.period)
		require.Equal(t, tc.refused, refused, tc.sample+" by "+tc.period)
		require.Equal(t, tc.known, known)
	}
}

func FuzzCheckRequest(f *testing.F) {
	body := marshalled(f, linked())
	f.Add(body)
	f.Add([]byte{})
	for _, tc := range wireDamages() {
		f.Add(tc.do(f, body))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, v := range conformancetest.CheckRequest(in, strict()) {
			require.NotEmpty(t, v.String())
		}
	})
}
