// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"iter"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
)

// dictionary is the dictionary of a request from anywhere: an index that it
// does not have is an empty string or no attribute, never a panic.
type dictionary struct{ pprofile.ProfilesDictionary }

func (d dictionary) string(i int32) string {
	if i < 0 || int(i) >= d.StringTable().Len() {
		return ""
	}
	return d.StringTable().At(int(i))
}

// attributes are those that indices name, in their order, without those that
// have no key.
func (d dictionary) attributes(indices pcommon.Int32Slice) iter.Seq2[string, pcommon.Value] {
	return func(yield func(string, pcommon.Value) bool) {
		table := d.AttributeTable()
		for _, i := range indices.All() {
			if i < 0 || int(i) >= table.Len() {
				continue
			}
			a := table.At(int(i))
			if key := d.string(a.KeyStrindex()); key != "" && !yield(key, a.Value()) {
				return
			}
		}
	}
}

// text is an attribute as a string, empty where there is none.
func text(m pcommon.Map, key string) string {
	if v, ok := m.Get(key); ok {
		return v.AsString()
	}
	return ""
}
