// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dictionary

import (
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
)

// Appender adds attributes to the dictionary of another sender. Each attribute is added
// only once. Appender keeps its working memory from one dictionary to the next. It is not
// safe for concurrent use. The zero value is ready for Reset.
type Appender struct {
	d          pprofile.ProfilesDictionary
	keys       map[string]int32
	attributes map[attribute]int32
}

// Reset starts adding to d. If reuse returns true for the key of an existing
// attribute, the attribute is reused. If reuse is nil, no attributes are
// reused, which saves a search of d.
func (a *Appender) Reset(d pprofile.ProfilesDictionary, reuse func(key string) bool) {
	if a.keys == nil {
		a.keys, a.attributes = make(map[string]int32), make(map[attribute]int32)
	}
	a.Release()
	a.d = d
	if d.StringTable().Len() == 0 {
		d.StringTable().Append("")
	}
	if d.AttributeTable().Len() == 0 {
		d.AttributeTable().AppendEmpty()
	}
	if reuse == nil {
		return
	}
	keys := make(map[int32]int32) // index of a key to the first index with the same key
	for i, key := range d.StringTable().All() {
		if i == 0 || !reuse(key) {
			continue
		}
		if _, ok := a.keys[key]; !ok {
			a.keys[key] = int32(i)
		}
		keys[int32(i)] = a.keys[key]
	}
	if len(keys) == 0 {
		return
	}
	for i, entry := range d.AttributeTable().All() {
		key, ok := keys[entry.KeyStrindex()]
		if i == 0 || !ok || entry.UnitStrindex() != 0 {
			continue
		}
		v, ok := valueOf(entry.Value())
		if !ok {
			continue
		}
		if _, ok := a.attributes[attribute{key, v}]; !ok {
			a.attributes[attribute{key, v}] = int32(i)
		}
	}
}

// Release releases the dictionary.
func (a *Appender) Release() {
	a.d = pprofile.ProfilesDictionary{}
	clear(a.keys)
	clear(a.attributes)
}

// Attribute returns the index of an attribute. If the attribute is missing, it is added.
func (a *Appender) Attribute(key string, v Value) int32 {
	k, ok := a.keys[key]
	if !ok {
		k = int32(a.d.StringTable().Len())
		a.d.StringTable().Append(key)
		a.keys[key] = k
	}
	i, ok := a.attributes[attribute{k, v}]
	if !ok {
		i = int32(a.d.AttributeTable().Len())
		out := a.d.AttributeTable().AppendEmpty()
		out.SetKeyStrindex(k)
		v.set(out.Value())
		a.attributes[attribute{k, v}] = i
	}
	return i
}

// valueOf returns the Value of an attribute. It returns false if the value is neither a
// text nor an integer.
func valueOf(v pcommon.Value) (Value, bool) {
	switch v.Type() {
	case pcommon.ValueTypeStr:
		return Str(v.Str()), true
	case pcommon.ValueTypeInt:
		return Int(v.Int()), true
	}
	return Value{}, false
}
