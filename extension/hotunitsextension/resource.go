// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

import (
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/otel/attribute"
)

// These constants limit the copies that ResourceOf makes.
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

// ResourceOf copies at most 32 attributes and 4 KiB from a resource. It omits lists,
// maps, bytes, and the keys for which skip returns true.
func ResourceOf(attributes pcommon.Map, skip func(key string) bool) (r Resource) {
	for k, v := range attributes.All() {
		value := valueOf(v)
		size := attributeSize + len(k) + len(value.AsString())
		switch {
		case value.Type() == attribute.EMPTY || skip(k):
		case len(r.Attributes) == maxResourceAttributes || r.Size+size > maxResourceSize:
			r.Dropped++
		default:
			if value.Type() == attribute.STRING {
				value = attribute.StringValue(strings.Clone(v.Str()))
			}
			r.Attributes = append(r.Attributes, attribute.KeyValue{Key: attribute.Key(strings.Clone(k)), Value: value})
			r.Size += size
		}
	}
	return r
}

// valueOf returns the value of an attribute, without copying a string. It returns an empty
// value for lists, maps and bytes.
func valueOf(v pcommon.Value) (out attribute.Value) {
	switch v.Type() {
	case pcommon.ValueTypeStr:
		out = attribute.StringValue(v.Str())
	case pcommon.ValueTypeInt:
		out = attribute.Int64Value(v.Int())
	case pcommon.ValueTypeDouble:
		out = attribute.Float64Value(v.Double())
	case pcommon.ValueTypeBool:
		out = attribute.BoolValue(v.Bool())
	}
	return out
}
