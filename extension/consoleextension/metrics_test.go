// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package consoleextension

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

func timestamp() pcommon.Timestamp { return pcommon.NewTimestampFromTime(time.Now()) }

// sums returns the values of a metric's points by the value of an attribute. For a
// histogram, the values are the counts.
func sums(data metricdata.Aggregation, key string) map[string]int64 {
	by := map[string]int64{}
	add := func(set attribute.Set, n int64) {
		value, _ := set.Value(attribute.Key(key))
		by[value.AsString()] += n
	}
	switch data := data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			if p.Value != 0 {
				add(p.Attributes, p.Value)
			}
		}
	case metricdata.Gauge[int64]:
		for _, p := range data.DataPoints {
			add(p.Attributes, p.Value)
		}
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			add(p.Attributes, int64(p.Count))
		}
	}
	return by
}
