// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dictionary_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
)

// attributesOf returns the attribute table without its zero entry.
func attributesOf(d pprofile.ProfilesDictionary) (all [][2]any) {
	for i, a := range d.AttributeTable().All() {
		if i > 0 {
			all = append(all, [2]any{d.StringTable().At(int(a.KeyStrindex())), a.Value().AsRaw()})
		}
	}
	return all
}

func TestAppenderAddsEachAttributeOnce(t *testing.T) {
	var a dictionary.Appender
	for range 2 { // the second round uses the appender again
		d := pprofile.NewProfilesDictionary()
		a.Reset(d, nil)
		var indices []int32
		for _, v := range []dictionary.Value{
			dictionary.Str("x"), dictionary.Int(7), dictionary.Str("7"), dictionary.Str(""), dictionary.Int(0),
			dictionary.Str("x"), dictionary.Int(7), dictionary.Int(0),
		} {
			indices = append(indices, a.Attribute("key", v))
		}
		require.Equal(t, []int32{1, 2, 3, 4, 5, 1, 2, 5}, indices)
		require.Equal(t, []string{"", "key"}, d.StringTable().AsRaw())
		require.Equal(t, [][2]any{{"key", "x"}, {"key", int64(7)}, {"key", "7"}, {"key", ""}, {"key", int64(0)}}, attributesOf(d))
		a.Release()
	}
}

func TestAppenderReusesWhatTheDictionaryHas(t *testing.T) {
	d := pprofile.NewProfilesDictionary()
	dictionary.AppendZeroEntries(d)
	d.StringTable().Append("mine.a", "other", "mine.a", "ms")
	entry := func(key, unit int32, set func(pcommon.Value)) {
		e := d.AttributeTable().AppendEmpty()
		e.SetKeyStrindex(key)
		e.SetUnitStrindex(unit)
		set(e.Value())
	}
	x := func(v pcommon.Value) { v.SetStr("x") }
	entry(99, 0, x) // 1: has no valid key
	entry(1, 4, x)  // 2: has a unit
	entry(1, 0, x)  // 3
	entry(3, 0, x)  // 4: same as 3
	entry(2, 0, x)  // 5: has the key of another component
	entry(1, 0, func(v pcommon.Value) { v.SetEmptySlice() })
	entry(1, 0, func(v pcommon.Value) { v.SetInt(7) }) // 7
	var a dictionary.Appender
	a.Reset(d, func(key string) bool { return strings.HasPrefix(key, "mine.") })
	require.Equal(t, int32(3), a.Attribute("mine.a", dictionary.Str("x")))
	require.Equal(t, int32(7), a.Attribute("mine.a", dictionary.Int(7)))
	require.Equal(t, int32(8), a.Attribute("mine.a", dictionary.Str("y")))
	require.Equal(t, int32(9), a.Attribute("mine.b", dictionary.Str("x")))
	require.Equal(t, []string{"", "mine.a", "other", "mine.a", "ms", "mine.b"}, d.StringTable().AsRaw())
}
