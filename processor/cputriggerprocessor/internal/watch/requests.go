// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/requests"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// WithRequests returns a source that reads request monitors from an intake, and all other
// monitors from another source.
func WithRequests(source Source, intake *requests.Intake, interval time.Duration) Source {
	return requestSource{source, intake, interval}
}

type requestSource struct {
	Source
	intake   *requests.Intake
	interval time.Duration
}

func (s requestSource) Watch(u *units.Unit, monitors []string) (Watcher, error) {
	host, keys := split(monitors)
	w, err := s.Source.Watch(u, host)
	if err != nil {
		return nil, err
	}
	return &requestWatcher{Watcher: w, host: len(host), interval: s.interval, reader: s.intake.Reader(u.Name, keys)}, nil
}

// split separates host monitors from the request monitors that follow them.
func split(monitors []string) (host, keys []string) {
	for i, m := range monitors {
		if requests.Is(requests.Name(m)) {
			return monitors[:i], monitors[i:]
		}
	}
	return monitors, nil
}

// requestWatcher reads host monitors first, and then request monitors.
type requestWatcher struct {
	Watcher
	host     int
	interval time.Duration
	reader   *requests.Reader
}

func (w *requestWatcher) Read(now time.Time, out []monitor.Result) {
	w.Watcher.Read(now, out[:w.host])
	w.reader.Read(now, w.interval, out[w.host:])
}

// SetMonitors replaces the monitors. The intake already has their conditions.
func (w *requestWatcher) SetMonitors(monitors []string) error {
	host, keys := split(monitors)
	w.host = len(host)
	w.reader.SetKeys(keys)
	return w.Watcher.SetMonitors(host)
}

func (w *requestWatcher) From(i int) string {
	if i < w.host {
		return w.Watcher.From(i)
	}
	return "spans and metrics"
}
