// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dictionary

import (
	"math"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/internal/protosize"
)

// Value is the value of an attribute. Values are comparable.
type Value struct {
	kind   kind
	text   string // of a string
	number int64  // an integer, the bits of a double, 1 for true
}

type kind uint8

const (
	text kind = iota
	integer
	double
	boolean
)

// Str returns a string.
func Str(s string) Value { return Value{text: s} }

// Int returns an integer.
func Int(n int64) Value { return Value{kind: integer, number: n} }

// Double returns a floating-point number.
func Double(x float64) Value { return Value{kind: double, number: int64(math.Float64bits(x))} }

// True returns the boolean true.
func True() Value { return Value{kind: boolean, number: 1} }

func (v Value) set(out pcommon.Value) {
	switch v.kind {
	case text:
		out.SetStr(v.text)
	case integer:
		out.SetInt(v.number)
	case double:
		out.SetDouble(math.Float64frombits(uint64(v.number)))
	case boolean:
		out.SetBool(v.number != 0)
	}
}

// size returns the size of the value, marshalled.
func (v Value) size() int {
	switch v.kind {
	case text:
		return protosize.Bytes(len(v.text))
	case integer:
		return 1 + protosize.Varint(uint64(v.number))
	case double:
		return 1 + 8
	}
	return 2
}

// attribute is an entry of the attribute table without a unit.
type attribute struct {
	key   int32
	value Value
}
