// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dictionary_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
)

func TestReaderOfAnySendersDictionary(t *testing.T) {
	d := pprofile.NewProfilesDictionary()
	r := dictionary.NewReader(d)
	indices := pcommon.NewInt32Slice()
	indices.FromRaw([]int32{2, -1, 0, 1, math.MaxInt32, 3})
	attributes := func() map[string]any {
		got := map[string]any{}
		for k, v := range r.Attributes(indices) {
			got[k] = v.AsRaw()
		}
		return got
	}
	require.Empty(t, r.Text(0), "no tables at all")
	require.Empty(t, attributes())

	dictionary.AppendZeroEntries(d)
	d.StringTable().Append("name", "count")
	for _, key := range []int32{1, 2, 3, math.MinInt32} { // the last two entries have no key
		a := d.AttributeTable().AppendEmpty()
		a.SetKeyStrindex(key)
		a.Value().SetInt(int64(key))
	}
	require.Equal(t, "name", r.Text(1))
	for _, i := range []int32{-1, 3, math.MaxInt32, math.MinInt32} {
		require.Empty(t, r.Text(i))
	}
	require.Equal(t, map[string]any{"name": int64(1), "count": int64(2)}, attributes())

	p := pprofile.NewProfile()
	p.SampleType().SetTypeStrindex(1)
	p.SampleType().SetUnitStrindex(2)
	p.PeriodType().SetTypeStrindex(3)
	require.Equal(t, dictionary.ProfileType{Sample: "name", Unit: "count"}, r.ProfileType(p))
}
