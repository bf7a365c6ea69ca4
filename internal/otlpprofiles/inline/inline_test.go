// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package inline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hotprofile/hotprofile/test/conformancetest"
)

// newProfiles returns a request with one profile of n samples. If orphans is set, the
// string table begins and ends with unused strings.
func newProfiles(n int, orphans bool) pprofile.Profiles {
	p := pprofile.NewProfiles()
	d := p.Dictionary()
	d.StringTable().Append("")
	if orphans {
		d.StringTable().Append("of no use", "service.name")
	}
	index := func(s string) int32 {
		for i, other := range d.StringTable().All() {
			if other == s {
				return int32(i)
			}
		}
		d.StringTable().Append(s)
		return int32(d.StringTable().Len() - 1)
	}
	d.LinkTable().AppendEmpty()
	d.MappingTable().AppendEmpty()
	m := d.MappingTable().AppendEmpty()
	m.SetFilenameStrindex(index("/usr/bin/checkout"))
	m.SetMemoryLimit(1 << 20)
	d.AttributeTable().AppendEmpty()
	a := d.AttributeTable().AppendEmpty()
	a.SetKeyStrindex(index("thread.name"))
	a.SetUnitStrindex(index("1"))
	a.Value().SetStr("worker")
	d.FunctionTable().AppendEmpty()
	d.LocationTable().AppendEmpty()
	d.StackTable().AppendEmpty()
	for i := range 10 {
		f := d.FunctionTable().AppendEmpty()
		f.SetNameStrindex(index(fmt.Sprint("main.work", i)))
		f.SetSystemNameStrindex(index("main.work"))
		f.SetFilenameStrindex(index("main.go"))
		l := d.LocationTable().AppendEmpty()
		l.SetMappingIndex(1)
		l.SetAddress(uint64(i))
		l.Lines().AppendEmpty().SetFunctionIndex(int32(i + 1))
		d.StackTable().AppendEmpty().LocationIndices().Append(int32(i + 1))
	}

	rp := p.ResourceProfiles().AppendEmpty()
	rp.SetSchemaUrl("https://opentelemetry.io/schemas/1.43.0")
	attributes := rp.Resource().Attributes()
	attributes.PutStr("service.name", "checkout")
	attributes.PutStr("main.go", "worker") // strings that are also used elsewhere
	attributes.PutStr("empty", "")
	attributes.PutInt("process.pid", 1<<60)
	attributes.PutBool("yes", true)
	attributes.PutDouble("half", 0.5)
	attributes.PutEmptyBytes("bytes").Append(0, 1, 2)
	list := attributes.PutEmptySlice("process.command_args")
	list.AppendEmpty().SetStr("checkout")
	list.AppendEmpty().SetInt(7)
	list.AppendEmpty().SetEmptyMap().PutStr("deep", "deeper")
	attributes.PutEmptyMap("map").PutStr("inner", "checkout")
	sp := rp.ScopeProfiles().AppendEmpty()
	sp.Scope().SetName("github.com/hotprofile/hotprofile")
	sp.Scope().Attributes().PutStr("scope", "<checkout> & \u2028")
	profile := sp.Profiles().AppendEmpty()
	profile.SampleType().SetTypeStrindex(index("samples"))
	profile.SampleType().SetUnitStrindex(index("count"))
	profile.PeriodType().SetTypeStrindex(index("cpu"))
	profile.PeriodType().SetUnitStrindex(index("nanoseconds"))
	profile.SetPeriod(10)
	profile.SetTime(1_795_000_000_000_000_000)
	for i := range n {
		s := profile.Samples().AppendEmpty()
		s.SetStackIndex(int32(i%10 + 1))
		s.AttributeIndices().Append(1)
		s.TimestampsUnixNano().Append(uint64(profile.Time()) + uint64(i))
	}
	if orphans {
		d.StringTable().Append("of no use either")
	}
	return p
}

// encoded encodes profiles as a request in the form that the newest collector sends.
func encoded(t testing.TB, p pprofile.Profiles) []byte {
	p.MarkReadOnly() // marshalling changes profiles that are not read-only
	b, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(p)
	require.NoError(t, err)
	return b
}

func decoded(t testing.TB, request []byte) pprofile.Profiles {
	p, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(request)
	require.NoError(t, err)
	return p
}

// meaning prints profiles with every index replaced by the table entry at the index.
func meaning(p pprofile.Profiles) string {
	var b strings.Builder
	d := p.Dictionary()
	str := func(i int32) string { return d.StringTable().At(int(i)) }
	for _, rp := range p.ResourceProfiles().All() {
		fmt.Fprintln(&b, "resource", rp.SchemaUrl(), rp.Resource().Attributes().AsRaw())
		for _, sp := range rp.ScopeProfiles().All() {
			fmt.Fprintln(&b, "scope", sp.Scope().Name(), sp.Scope().Attributes().AsRaw())
			for _, p := range sp.Profiles().All() {
				fmt.Fprintln(&b, "profile", p.Time(), p.Period(), str(p.SampleType().TypeStrindex()), str(p.SampleType().UnitStrindex()),
					str(p.PeriodType().TypeStrindex()), str(p.PeriodType().UnitStrindex()))
				for _, s := range p.Samples().All() {
					fmt.Fprintln(&b, "sample", s.TimestampsUnixNano().AsRaw(), s.StackIndex(), s.AttributeIndices().AsRaw())
				}
			}
		}
	}
	for _, m := range d.MappingTable().All() {
		fmt.Fprintln(&b, "mapping", m.MemoryLimit(), str(m.FilenameStrindex()))
	}
	for _, f := range d.FunctionTable().All() {
		fmt.Fprintln(&b, "function", str(f.NameStrindex()), str(f.SystemNameStrindex()), str(f.FilenameStrindex()))
	}
	for _, a := range d.AttributeTable().All() {
		fmt.Fprintln(&b, "attribute", str(a.KeyStrindex()), a.Value().AsRaw(), str(a.UnitStrindex()))
	}
	return b.String()
}

// references returns the number of attributes that refer to the string table.
func references(t testing.TB, request []byte) int {
	r := rewriter{}
	require.NoError(t, r.collect(request))
	r.used = make([]bool, len(r.strings))
	require.NoError(t, r.mark(requestMessage(), request, 0))
	return r.written
}

func TestAttributesAreWrittenOut(t *testing.T) {
	for name, orphans := range map[string]bool{"strings keep their indices": false, "strings move": true} {
		t.Run(name, func(t *testing.T) {
			source := newProfiles(100, orphans)
			want := meaning(source)
			request := encoded(t, source)
			before := bytes.Clone(request)
			require.NotZero(t, references(t, request), "the release in use sends references")

			out, err := Request(request)
			require.NoError(t, err)
			require.Equal(t, before, request, "the argument is not changed")
			require.Zero(t, references(t, out))
			require.Equal(t, want, meaning(decoded(t, out)))
			for _, v := range conformancetest.CheckRequest(out, conformancetest.Options{}) {
				require.NotContains(t, []string{conformancetest.InlineAttributes.Name, "orphan"}, v.Name, v)
			}
			again, err := Request(out)
			require.NoError(t, err)
			require.Equal(t, out, again, "there is nothing left to write out")
		})
	}
}

func TestAttributesAreWrittenOutOfJSON(t *testing.T) {
	for name, orphans := range map[string]bool{"strings keep their indices": false, "strings move": true} {
		t.Run(name, func(t *testing.T) {
			source := newProfiles(3, orphans)
			want := meaning(source)
			source.MarkReadOnly()
			request, err := (&pprofile.JSONMarshaler{}).MarshalProfiles(source)
			require.NoError(t, err)
			require.Contains(t, string(request), jsonValueIndex, "the release in use sends references")

			out, err := JSON(request)
			require.NoError(t, err)
			require.NotContains(t, string(out), jsonValueIndex)
			var root struct {
				Dictionary struct{ StringTable []string }
			}
			require.NoError(t, json.Unmarshal(out, &root))
			require.NotContains(t, root.Dictionary.StringTable, "checkout", "only references used it")
			require.NotContains(t, root.Dictionary.StringTable, "of no use")
			p, err := (&pprofile.JSONUnmarshaler{}).UnmarshalProfiles(out)
			require.NoError(t, err)
			require.Equal(t, want, meaning(p))
			again, err := JSON(out)
			require.NoError(t, err)
			require.Equal(t, out, again)
		})
	}
}

func attribute(key, value uint64) []byte {
	v := protowire.AppendVarint(protowire.AppendTag(nil, 8, protowire.VarintType), value)
	kv := protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), key)
	return protowire.AppendBytes(protowire.AppendTag(kv, 2, protowire.BytesType), v)
}

// requestWith returns a request with one resource and a string table.
func requestWith(attributes [][]byte, table ...string) []byte {
	var resource, dictionary []byte
	for _, a := range attributes {
		resource = protowire.AppendBytes(protowire.AppendTag(resource, 1, protowire.BytesType), a)
	}
	for _, s := range table {
		dictionary = protowire.AppendString(protowire.AppendTag(dictionary, stringTableField, protowire.BytesType), s)
	}
	rp := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), resource)
	out := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), rp)
	return protowire.AppendBytes(protowire.AppendTag(out, dictionaryField, protowire.BytesType), dictionary)
}

func TestRequestsThatCannotBeWrittenOutAreRefused(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	var many [][]byte
	for range 70 {
		many = append(many, attribute(1, 1))
	}
	deep := attribute(1, 1)
	for range maxDepth {
		list := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), deep)
		value := protowire.AppendBytes(protowire.AppendTag(nil, 6, protowire.BytesType), list)
		deep = protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), value)
	}
	for name, tc := range map[string]struct {
		request []byte
		want    string
	}{
		"key beyond the table":   {requestWith([][]byte{attribute(2, 1)}, "", "a"), "KeyValue.key_strindex is 2, and the string table has 2 entries"},
		"value beyond the table": {requestWith([][]byte{attribute(1, 9)}, "", "a"), "AnyValue.string_value_strindex is 9"},
		"negative index":         {requestWith([][]byte{attribute(1, 1<<64-1)}, "", "a"), "string_value_strindex is -1"},
		"cut off":                {encoded(t, newProfiles(1, false))[:200], "unexpected EOF"},
		"too deep":               {requestWith([][]byte{deep}, "", "a"), "nest deeper than 64"},
		"too large":              {requestWith(many, "", big), "more than 64 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Request(tc.request)
			require.ErrorContains(t, err, tc.want)
		})
	}
	_, err := JSON([]byte(`{"resourceProfiles":[{"resource":{"attributes":[{"keyStrindex":5}]}}],"dictionary":{"stringTable":[""]}}`))
	require.ErrorContains(t, err, "keyStrindex is 5, and the string table has 1 entries")
}

func TestEmptyRequests(t *testing.T) {
	out, err := Request(nil)
	require.NoError(t, err)
	require.Empty(t, out)
	out, err = Request(requestWith([][]byte{attribute(0, 0)})) // an empty key and value, and no table
	require.NoError(t, err)
	require.Zero(t, references(t, out))
}

// FuzzRequest checks that rewriting keeps the meaning of every request that a decoder
// accepts. Any other request must be rewritten, or rejected with an error, without a panic.
func FuzzRequest(f *testing.F) {
	f.Add(encoded(f, newProfiles(2, false)))
	f.Add(encoded(f, newProfiles(2, true)))
	f.Add(requestWith([][]byte{attribute(1, 2)}, "", "a", "b"))
	f.Fuzz(func(t *testing.T, request []byte) {
		out, err := Request(request)
		if err != nil {
			return
		}
		before, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(request)
		if err != nil {
			return
		}
		after, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(out)
		require.NoError(t, err)
		require.Equal(t, resources(before), resources(after))
	})
}

func resources(p pprofile.Profiles) (out []string) {
	for _, rp := range p.ResourceProfiles().All() {
		out = append(out, raw(rp.Resource().Attributes()))
		for _, sp := range rp.ScopeProfiles().All() {
			out = append(out, raw(sp.Scope().Attributes()))
		}
	}
	return out
}

func raw(m pcommon.Map) string { return fmt.Sprintf("%v", m.AsRaw()) }

func FuzzJSON(f *testing.F) {
	source := newProfiles(2, true)
	source.MarkReadOnly()
	request, err := (&pprofile.JSONMarshaler{}).MarshalProfiles(source)
	require.NoError(f, err)
	f.Add(request)
	f.Fuzz(func(_ *testing.T, request []byte) { _, _ = JSON(request) })
}

// BenchmarkRequest compares rewriting a request with marshalling the request. The
// exporter always marshals requests.
func BenchmarkRequest(b *testing.B) {
	source := newProfiles(8000, false)
	request := encoded(b, source)
	b.Run("marshal", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(request)))
		for b.Loop() {
			_ = encoded(b, source)
		}
	})
	b.Run("inline", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(request)))
		for b.Loop() {
			if _, err := Request(request); err != nil {
				b.Fatal(err)
			}
		}
	})
}
