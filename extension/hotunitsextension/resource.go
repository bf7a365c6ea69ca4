// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

import (
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/otel/attribute"
)

// The bounds of the copies that ResourceOf makes.
const (
	maxResourceAttributes = 32
	maxResourceSize       = 4 << 10
	attributeSize         = 64 // bytes of an attribute without its texts
)

// Resource contains copies of the attributes of a resource, for events.
type Resource struct {
	Attributes []attribute.KeyValue
	Size       int // estimated bytes
	Dropped    int // number of attributes that were left out at the bounds
}

// ResourceOf copies at most 32 attributes and 4 KiB from a resource. It leaves out lists,
// maps, bytes, and the keys for which skip returns true.
func ResourceOf(attributes pcommon.Map, skip func(key string) bool) (r Resource) {
	for k, v := range attributes.All() {
		kv, size, ok := copyOf(k, v)
		switch {
		case !ok || skip(k):
		case len(r.Attributes) == maxResourceAttributes || r.Size+size > maxResourceSize:
			r.Dropped++
		default:
			kv.Key = attribute.Key(strings.Clone(k))
			if kv.Value.Type() == attribute.STRING {
				kv.Value = attribute.StringValue(strings.Clone(v.Str()))
			}
			r.Attributes = append(r.Attributes, kv)
			r.Size += size
		}
	}
	return r
}

// copyOf returns an attribute and its estimated size. It does not copy texts. It returns
// false for lists, maps and bytes.
func copyOf(k string, v pcommon.Value) (kv attribute.KeyValue, size int, ok bool) {
	key, size := attribute.Key(k), attributeSize+len(k)
	switch v.Type() {
	case pcommon.ValueTypeStr:
		return key.String(v.Str()), size + len(v.Str()), true
	case pcommon.ValueTypeInt:
		return key.Int64(v.Int()), size, true
	case pcommon.ValueTypeDouble:
		return key.Float64(v.Double()), size, true
	case pcommon.ValueTypeBool:
		return key.Bool(v.Bool()), size, true
	}
	return attribute.KeyValue{}, 0, false
}
