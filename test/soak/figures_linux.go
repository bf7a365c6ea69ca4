// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// series is one series of the collector's own metrics at one moment.
type series struct {
	name   string // in the notation of Prometheus
	labels map[string]string
	value  float64
}

// figures contains all series of one moment, except for histograms.
type figures []series

// sum adds up the series of a metric that have all the given labels.
// The labels are given as key, value, key, value and so on.
func (f figures) sum(name string, labels ...string) (n int64) {
	for _, s := range f {
		if s.name == name && s.has(labels) {
			n += int64(s.value)
		}
	}
	return n
}

func (s *series) has(labels []string) bool {
	for i := 0; i+1 < len(labels); i += 2 {
		if s.labels[labels[i]] != labels[i+1] {
			return false
		}
	}
	return true
}

// by adds up the series of a metric for each value of a label.
func (f figures) by(name, label string) map[string]int64 {
	out := map[string]int64{}
	for _, s := range f {
		if s.name == name {
			out[s.labels[label]] += int64(s.value)
		}
	}
	return out
}

// readPrometheus reads the text format that the collector writes.
func readPrometheus(r io.Reader) (f figures, err error) {
	scan := bufio.NewScanner(r)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		line := scan.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		space := strings.LastIndexByte(line, ' ')
		if space < 0 {
			return nil, fmt.Errorf("metrics: no value in %q", line)
		}
		value, err := strconv.ParseFloat(line[space+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
		name, labels, _ := strings.Cut(line[:space], "{")
		s := series{name: name, value: value}
		if s.labels, err = readLabels(strings.TrimSuffix(labels, "}")); err != nil {
			return nil, err
		}
		f = append(f, s)
	}
	return f, scan.Err()
}

func readLabels(text string) (map[string]string, error) {
	labels := map[string]string{}
	for text != "" {
		key, rest, ok := strings.Cut(text, "=")
		quoted, err := strconv.QuotedPrefix(rest)
		if !ok || err != nil {
			return nil, fmt.Errorf("metrics: labels %q: a key and a quoted value were expected", text)
		}
		value, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, fmt.Errorf("metrics: labels %q: %w", text, err)
		}
		labels[key] = value
		text = strings.TrimPrefix(rest[len(quoted):], ",")
	}
	return labels, nil
}

// readOTLP reads metrics that the collector pushed. It
// converts their names to the notation of Prometheus.
func readOTLP(md pmetric.Metrics) (f figures) {
	add := func(name string, points pmetric.NumberDataPointSlice) {
		for _, p := range points.All() {
			s := series{name: strings.ReplaceAll(name, ".", "_"), labels: map[string]string{}, value: p.DoubleValue()}
			if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
				s.value = float64(p.IntValue())
			}
			maps.Insert(s.labels, func(yield func(string, string) bool) {
				p.Attributes().Range(func(k string, v pcommon.Value) bool {
					return yield(strings.ReplaceAll(k, ".", "_"), v.AsString())
				})
			})
			f = append(f, s)
		}
	}
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				switch m.Type() {
				case pmetric.MetricTypeSum:
					add(m.Name(), m.Sum().DataPoints())
				case pmetric.MetricTypeGauge:
					add(m.Name(), m.Gauge().DataPoints())
				}
			}
		}
	}
	return f
}
