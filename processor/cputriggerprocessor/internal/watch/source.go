// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// maxOpenFiles bounds the files that readings keep open; further ones are opened
// for each reading.
const maxOpenFiles = 4096

// OpenFiles returns how many files readings may keep open where the process may
// open limit: a quarter. Samplers take up to half, and connections and files of
// other components need some.
func OpenFiles(limit int) int { return min(limit/4, maxOpenFiles) }

// Watcher reads the monitors of one unit.
type Watcher interface {
	Read(now time.Time, out []monitor.Result)
	Capacity() cgroup.Capacity
	// From returns the file or event that monitor i is read from; empty while it
	// is unavailable.
	From(i int) string
	Close()
}

// Source opens watchers.
type Source interface {
	Watch(u *units.Unit, monitors []string) (Watcher, error)
	// Started returns when the first process of a cgroup started.
	Started(u *units.Unit) (time.Time, error)
	Close()
}

// HostSource returns the source of this machine.
func HostSource(source *monitor.Source) Source { return hostSource{source} }

type hostSource struct{ *monitor.Source }

func (s hostSource) Watch(u *units.Unit, monitors []string) (Watcher, error) {
	if u.IsProcess() {
		w, err := s.WatchProcess(u.Process, monitors)
		if err != nil {
			return nil, err
		}
		return w, nil
	}
	w, err := s.WatchUnit(u.Group, monitors)
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (s hostSource) Started(u *units.Unit) (time.Time, error) { return s.StartedAt(u.Group) }
