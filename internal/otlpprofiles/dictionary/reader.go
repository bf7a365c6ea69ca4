// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dictionary

import (
	"iter"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
)

// Reader reads the dictionary of a request from any sender: an index out of range
// is an empty string or no attribute. Make one with NewReader.
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

// Attributes yields the attributes that indices refer to, in their order, except
// those without a key.
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

// ResourceText returns an attribute of a resource as a string, empty if it is not
// set.
func ResourceText(resource pcommon.Map, key string) string {
	if v, ok := resource.Get(key); ok {
		return v.AsString()
	}
	return ""
}
