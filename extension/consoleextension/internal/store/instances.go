// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

const (
	// starting is the length of the startup phase of a collector, in seconds. All logs of
	// this phase are kept. Later, only warnings and errors are kept.
	starting = 120
	// seenEvery is the time after which a unit or a collector that still sends data is saved
	// again, in seconds. The metrics of a collector are saved with it. The interval can be
	// long, because every export sends the metrics again. Close also saves the metrics.
	seenEvery = 900

	maxMetricBytes     = 256 // for the attributes of a metric
	maxMetricAttribute = 8
)

// instance is the state of a collector in memory. The exported fields are stored in the
// database. The logs of the collector are events.
type instance struct {
	Instance
	Began int64 // start of the collector, by the clock

	ByKey map[string]Metric // the field Metrics is empty

	seen    int64 // by the clock
	saved   int64 // value of seen when the collector was last touched
	started int   // number of startup logs
}

// PutMetrics adds the newest points of a collector's metrics. It uses ID, Host,
// Service and Version of the instance. PerSecond of a monotonic metric is
// computed from the previous point.
func (s *Store) PutMetrics(of Instance, metrics []Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.instance(of)
	if i == nil {
		s.drop("metrics", int64(len(metrics)))
		return
	}
	for _, m := range metrics {
		m.Name, m.Unit = cutText(m.Name, maxName), cutText(m.Unit, maxName)
		m.At, m.Value, m.PerSecond = s.plausible(m.At), finite(m.Value), finite(m.PerSecond)
		m.Attributes, _, _ = boundAttributes(m.Attributes, maxMetricAttribute, maxMetricBytes)
		key := metricKey(m)
		if was, ok := i.ByKey[key]; ok {
			m.Attributes = was.Attributes
			if span := m.At.Sub(was.At).Seconds(); m.Monotonic && m.PerSecond == 0 && span > 0 && m.Value >= was.Value {
				m.PerSecond = (m.Value - was.Value) / span
			} else if span == 0 {
				m.PerSecond = was.PerSecond
			}
		} else if len(i.ByKey) >= maxMetrics || s.metrics >= maxAllMetrics {
			s.drop("metrics", 1)
			continue
		} else {
			s.metrics++
		}
		i.ByKey[key] = m
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
		s.drop("logs", int64(len(logs)))
		return
	}
	if starts {
		i.Began, i.started = i.seen, 0
		s.touch(i)
		s.queue(startupLogs.dropped, "DELETE FROM startup_logs WHERE subject = ?", i.ID)
	}
	for _, l := range logs {
		l.At = s.plausible(l.At)
		l.Severity, l.Component = cutText(l.Severity, 16), cutText(l.Component, maxName)
		l.Body = cutText(l.Body, maxText)
		l.Attributes, _, _ = boundAttributes(l.Attributes, maxLogAttributes, 2*maxText)
		switch {
		case l.IsWarning():
			s.addEvent(warnings, i.ID, "", "", l)
		case i.seen-i.Began > starting:
		case i.started >= maxStartLogs:
			s.drop("logs", 1)
		default:
			i.started++
			s.addEvent(startupLogs, i.ID, "", "", l)
		}
	}
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
		i = &instance{ByKey: map[string]Metric{}}
		i.ID, i.First, i.Began = id, s.options.Now(), s.now()
		s.instances[id] = i
		s.touch(i)
	}
	i.Host = cmp.Or(cutText(of.Host, maxName), i.Host)
	i.Service = cmp.Or(cutText(of.Service, maxName), i.Service)
	i.Version = cmp.Or(cutText(of.Version, maxName), i.Version)
	i.seen, i.Last = s.now(), s.options.Now()
	if i.seen-i.saved >= seenEvery {
		i.saved = i.seen
		s.touch(i)
	}
	return i
}

func (s *Store) removeInstance(i *instance) {
	s.metrics -= len(i.ByKey)
	delete(s.instances, i.ID)
	delete(s.dirty, i)
	s.erase(kindInstance, i.ID)
}

// Instances implements Reader. It sorts instances by host, service and
// the time of their first data.
func (s *Store) Instances(ctx context.Context) ([]Instance, error) {
	var err error
	logs := map[string][]Log{}
	for _, table := range []eventTable{startupLogs, warnings} {
		err = cmp.Or(err, s.eachEvent(ctx, table, "", 0, func(id string, data []byte) error {
			var l Log
			err := json.Unmarshal(data, &l)
			logs[id] = append(logs[id], l)
			return err
		}))
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]Instance, 0, len(s.instances))
	for id, i := range s.instances {
		is := i.Instance
		is.Metrics = slices.Collect(maps.Values(i.ByKey))
		slices.SortFunc(is.Metrics, func(a, b Metric) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(metricKey(a), metricKey(b)))
		})
		is.Logs = logs[id]
		slices.SortStableFunc(is.Logs, func(a, b Log) int { return b.At.Compare(a.At) })
		out = append(out, is)
	}
	slices.SortFunc(out, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Service, b.Service), a.First.Compare(b.First), cmp.Compare(a.ID, b.ID))
	})
	return out, err
}

func (i *instance) record() []any {
	return []any{kindInstance, i.ID, "", i.seen, encoded(i)}
}

func (s *Store) loadInstance(key string, _ UnitID, seen int64, data []byte) error {
	i := &instance{seen: seen, saved: seen, ByKey: map[string]Metric{}}
	if err := json.Unmarshal(data, i); err != nil {
		return err
	}
	if i.ID != key || key == "" || i.ByKey == nil {
		return errRecord
	}
	i.Metrics = nil // of an earlier version
	s.metrics += len(i.ByKey)
	s.instances[i.ID] = i
	return nil
}
