// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package dictionary reads and writes the dictionaries of OTLP profiles. A dictionary
// contains tables of strings, attributes, functions, mappings, locations, stacks and
// links. The profiles of a request refer to the entries of these tables by index.
package dictionary

import (
	"iter"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/internal/protosize"
)

// Reader reads the dictionary of a request from any sender. If an index is out of range,
// Reader treats it as an empty string or a missing attribute. NewReader creates a Reader.
type Reader struct{ pprofile.ProfilesDictionary }

// NewReader returns a Reader of d.
func NewReader(d pprofile.ProfilesDictionary) Reader { return Reader{d} }

// Text returns a string of the string table.
func (r Reader) Text(i int32) string {
	if i < 0 || int(i) >= r.StringTable().Len() {
		return ""
	}
	return r.StringTable().At(int(i))
}

// Attributes yields the attributes that indices refer to, in order. It skips attributes
// without a key.
func (r Reader) Attributes(indices pcommon.Int32Slice) iter.Seq2[string, pcommon.Value] {
	return func(yield func(string, pcommon.Value) bool) {
		table := r.AttributeTable()
		for _, i := range indices.All() {
			if i < 0 || int(i) >= table.Len() {
				continue
			}
			a := table.At(int(i))
			if key := r.Text(a.KeyStrindex()); key != "" && !yield(key, a.Value()) {
				return
			}
		}
	}
}

// ProfileType is the type of a profile.
type ProfileType struct {
	Sample, Unit, Period, PeriodUnit string
}

// ProfileType returns the type of a profile.
func (r Reader) ProfileType(p pprofile.Profile) ProfileType {
	return ProfileType{
		Sample:     r.Text(p.SampleType().TypeStrindex()),
		Unit:       r.Text(p.SampleType().UnitStrindex()),
		Period:     r.Text(p.PeriodType().TypeStrindex()),
		PeriodUnit: r.Text(p.PeriodType().UnitStrindex()),
	}
}

// ValueOf returns the sum of a sample's values. A sample without values has the value 1 for
// each timestamp.
func ValueOf(s pprofile.Sample) (value int64) {
	if s.Values().Len() == 0 {
		return int64(s.TimestampsUnixNano().Len())
	}
	for _, v := range s.Values().All() {
		value += v
	}
	return value
}

// AppendZeroEntries appends the zero entry to each table. OTLP requires a zero entry at
// index 0. A reference to this entry means "not set".
func AppendZeroEntries(d pprofile.ProfilesDictionary) {
	d.StringTable().Append("")
	d.AttributeTable().AppendEmpty()
	d.FunctionTable().AppendEmpty()
	d.MappingTable().AppendEmpty()
	d.LocationTable().AppendEmpty()
	d.StackTable().AppendEmpty()
	d.LinkTable().AppendEmpty()
}

// Value is the value of an attribute, which is either a string or an integer. Values are
// comparable.
type Value struct {
	text     string
	number   int64
	isNumber bool
}

// Str returns a string as a Value.
func Str(s string) Value { return Value{text: s} }

// Int returns an integer as a Value.
func Int(n int64) Value { return Value{number: n, isNumber: true} }

func (v Value) set(out pcommon.Value) {
	if v.isNumber {
		out.SetInt(v.number)
	} else {
		out.SetStr(v.text)
	}
}

// size returns the marshalled size of the value.
func (v Value) size() int {
	if v.isNumber {
		return 1 + protosize.Varint(uint64(v.number))
	}
	return protosize.Bytes(len(v.text))
}

// attribute is an entry of the attribute table without a unit.
type attribute struct {
	key   int32
	value Value
}
