// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

const (
	// starting is the length of the startup phase of a collector, in seconds. All logs of
	// this phase are kept. Later, only warnings and errors are kept.
	starting = 120
	// metricsEvery is the time between two writes of the metrics of instances, in seconds.
	// The interval can be long, because every export sends the metrics again. Close also
	// writes the metrics.
	metricsEvery = 900

	maxLogBytes        = 32 << 10 // for the warnings of an instance, and again for its other logs
	maxMetricBytes     = 256      // for the attributes of a metric
	maxMetricAttribute = 8
	overhead           = 64 // bytes that a log takes besides its texts
)

// instance is the state of a collector in memory.
type instance struct {
	instanceRecord
	seen    int64 // by the clock
	metrics map[string]*Metric
}

// instanceRecord is the state of a collector in the database.
type instanceRecord struct {
	Instance        `json:"Instance"`
	Began           int64 // by the clock
	Start, Warnings []Log // oldest first
}

// PutMetrics adds the newest points of a collector's metrics. It uses ID, Host,
// Service and Version of the instance. PerSecond of a monotonic metric is
// computed from the previous point.
func (s *Store) PutMetrics(of Instance, metrics []Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.instance(of)
	if i == nil {
		s.drop("metrics", len(metrics))
		return
	}
	for _, m := range metrics {
		m.Name, m.Unit = cutText(m.Name, maxName), cutText(m.Unit, maxName)
		m.At, m.Value, m.PerSecond = s.plausible(m.At), finite(m.Value), finite(m.PerSecond)
		m.Attributes, _, _ = boundAttributes(m.Attributes, maxMetricAttribute, maxMetricBytes)
		key := metricKey(m)
		was := i.metrics[key]
		if was == nil {
			if len(i.metrics) >= maxMetrics || s.metrics >= maxAllMetrics {
				s.drop("metrics", 1)
				continue
			}
			s.metrics++
			was = &Metric{}
			i.metrics[key] = was
		} else {
			m.Attributes = was.Attributes
			if span := m.At.Sub(was.At).Seconds(); m.Monotonic && m.PerSecond == 0 && span > 0 && m.Value >= was.Value {
				m.PerSecond = (m.Value - was.Value) / span
			} else if span == 0 {
				m.PerSecond = was.PerSecond
			}
		}
		*was = m
	}
}

func metricKey(m Metric) string {
	var b strings.Builder
	b.WriteString(m.Name)
	for _, k := range slices.Sorted(maps.Keys(m.Attributes)) {
		b.WriteString("\x00" + k + "\x00" + m.Attributes[k])
	}
	return b.String()
}

// PutLogs adds log records of a collector, oldest first. It keeps warnings and errors. Other
// records are kept only if they arrive soon after the start of the collector. starts is true
// if logs begins with the first record after a start.
func (s *Store) PutLogs(of Instance, logs []Log, starts bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.instance(of)
	if i == nil {
		s.drop("logs", len(logs))
		return
	}
	if starts {
		i.Began, i.Start = i.seen, nil
	}
	for _, l := range logs {
		l.At = s.plausible(l.At)
		l.Severity, l.Component = cutText(l.Severity, 16), cutText(l.Component, maxName)
		l.Body = cutText(l.Body, maxText)
		l.Attributes, _, _ = boundAttributes(l.Attributes, maxLogAttributes, 2*maxText)
		switch {
		case l.IsWarning():
			i.Warnings = append(i.Warnings, l)
			for len(i.Warnings) > maxWarnings || logBytes(i.Warnings...) > maxLogBytes {
				i.Warnings = slices.Delete(i.Warnings, 0, 1)
				s.drop("logs", 1)
			}
		default:
			if i.seen-i.Began > starting {
				continue
			}
			if len(i.Start) >= maxStartLogs || logBytes(i.Start...)+logBytes(l) > maxLogBytes {
				s.drop("logs", 1)
				continue
			}
			i.Start = append(i.Start, l)
		}
		s.touch(kindInstance, i.ID, i)
	}
}

func logBytes(all ...Log) (n int) {
	for _, l := range all {
		n += overhead + len(l.Body)
		for k, v := range l.Attributes {
			n += len(k) + len(v)
		}
	}
	return n
}

// instance finds or adds a collector, and marks it as seen. It returns nil if the collector
// has no ID.
func (s *Store) instance(of Instance) *instance {
	if of.ID == "" {
		return nil
	}
	id := cutText(of.ID, maxName)
	i := s.instances[id]
	if i == nil {
		if len(s.instances) >= maxInstances {
			s.removeInstance(slices.MinFunc(slices.Collect(maps.Values(s.instances)), func(a, b *instance) int { return cmp.Compare(a.seen, b.seen) }))
			s.drop("instances", 1)
		}
		i = &instance{metrics: map[string]*Metric{}}
		i.ID, i.First, i.Began = id, s.options.Now(), s.clock.now()
		s.instances[id] = i
		s.touch(kindInstance, id, i)
	}
	i.Host = cmp.Or(cutText(of.Host, maxName), i.Host)
	i.Service = cmp.Or(cutText(of.Service, maxName), i.Service)
	i.Version = cmp.Or(cutText(of.Version, maxName), i.Version)
	i.seen, i.Last = s.clock.now(), s.options.Now()
	return i
}

func (s *Store) removeInstance(i *instance) {
	s.metrics -= len(i.metrics)
	delete(s.instances, i.ID)
	s.touch(kindInstance, i.ID, nil)
	s.touch(kindMetrics, i.ID, nil)
}

// ageInstances forgets the collectors that were last seen before oldest.
func (s *Store) ageInstances(oldest int64) {
	for _, i := range s.instances {
		if i.seen < oldest {
			s.removeInstance(i)
		}
	}
}

// Instances implements Reader. It sorts instances by host, service and
// the time of their first data.
func (s *Store) Instances() []Instance {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]Instance, 0, len(s.instances))
	for _, i := range s.instances {
		is := i.Instance
		for _, m := range i.metrics {
			is.Metrics = append(is.Metrics, *m)
		}
		slices.SortFunc(is.Metrics, func(a, b Metric) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(metricKey(a), metricKey(b)))
		})
		is.Logs = append(slices.Clone(i.Start), i.Warnings...)
		slices.SortStableFunc(is.Logs, func(a, b Log) int { return b.At.Compare(a.At) })
		out = append(out, is)
	}
	slices.SortFunc(out, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Service, b.Service), a.First.Compare(b.First), cmp.Compare(a.ID, b.ID))
	})
	return out
}

func (i *instance) record() (UnitID, int64, any) {
	return "", i.seen, i.instanceRecord
}

// metricsOf is the database record for the metrics of an instance.
type metricsOf struct{ *instance }

func (i metricsOf) record() (UnitID, int64, any) {
	return "", i.seen, slices.Collect(maps.Values(i.metrics))
}

func (s *Store) loadInstance(key string, _ UnitID, seen int64, data []byte) error {
	i := &instance{seen: seen, metrics: map[string]*Metric{}}
	if err := json.Unmarshal(data, &i.instanceRecord); err != nil {
		return err
	}
	if i.ID != key || key == "" || len(s.instances) >= maxInstances {
		return errRecord
	}
	s.instances[i.ID] = i
	return nil
}

func (s *Store) loadMetrics(key string, _ UnitID, _ int64, data []byte) error {
	var all []Metric
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	i := s.instances[key]
	if i == nil {
		return errRecord
	}
	for _, m := range all[:min(len(all), maxMetrics, maxAllMetrics-s.metrics)] {
		i.metrics[metricKey(m)] = &m
	}
	s.metrics += len(i.metrics)
	return nil
}
