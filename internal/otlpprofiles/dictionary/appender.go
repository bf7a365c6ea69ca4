// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dictionary

import (
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/internal/protosize"
)

// Appender adds strings and attributes to a dictionary, which may come from another sender.
// Each string and each attribute is added only once. Appender reuses its working memory for
// the next dictionary. It is not safe for concurrent use. The zero value is ready for Reset,
// which must be called before other methods.
type Appender struct {
	out        pprofile.ProfilesDictionary
	size       int // marshalled size of the added entries
	strings    map[string]int32
	attributes map[attribute]int32
}

// Reset starts adding to d. If reuse returns true for the key of an existing
// attribute, the attribute is reused. If reuse is nil, no attributes are
// reused, which saves a search of d.
func (a *Appender) Reset(d pprofile.ProfilesDictionary, reuse func(key string) bool) {
	if a.strings == nil {
		a.strings, a.attributes = make(map[string]int32), make(map[attribute]int32)
	}
	a.Release()
	a.out, a.size, a.strings[""] = d, 0, 0
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
		if _, ok := a.strings[key]; !ok {
			a.strings[key] = int32(i)
		}
		keys[int32(i)] = a.strings[key]
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
	a.out = pprofile.ProfilesDictionary{}
	clear(a.strings)
	clear(a.attributes)
}

// ValidUTF8 replaces invalid UTF-8. Names of threads and files may contain any
// bytes, and receivers reject a whole request because of invalid UTF-8. The
// replacement is one byte, so no string grows.
func ValidUTF8(s string) string { return strings.ToValidUTF8(s, "?") }

// String returns the index of a string. If the string is missing, it is added.
func (a *Appender) String(s string) int32 {
	i, ok := a.strings[s]
	if ok {
		return i
	}
	if v := ValidUTF8(s); v != s {
		i = a.String(v)
		a.strings[s] = i
		return i
	}
	i = int32(a.out.StringTable().Len())
	a.out.StringTable().Append(s)
	a.size += protosize.Bytes(len(s))
	a.strings[s] = i
	return i
}

// Attribute returns the index of an attribute. If the attribute is missing, it is added.
func (a *Appender) Attribute(key string, v Value) int32 {
	entry := attribute{a.String(key), v}
	i, ok := a.attributes[entry]
	if ok {
		return i
	}
	if text := ValidUTF8(v.text); text != v.text {
		i = a.Attribute(key, Str(text))
		a.attributes[entry] = i
		return i
	}
	i = int32(a.out.AttributeTable().Len())
	out := a.out.AttributeTable().AppendEmpty()
	out.SetKeyStrindex(entry.key)
	v.set(out.Value())
	a.size += protosize.Bytes(protosize.Number(uint64(entry.key)) + protosize.Bytes(v.size()))
	a.attributes[entry] = i
	return i
}

// valueOf returns the Value of an attribute. It returns false if the value is neither a
// string nor an integer.
func valueOf(v pcommon.Value) (Value, bool) {
	switch v.Type() {
	case pcommon.ValueTypeStr:
		return Str(v.Str()), true
	case pcommon.ValueTypeInt:
		return Int(v.Int()), true
	}
	return Value{}, false
}
