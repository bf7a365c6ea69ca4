// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

import "github.com/hotprofile/hotprofile/internal/cgroup"

// These monitors measure the share of time in which at least one thread of the unit
// waits for a CPU, for memory or for a disk. Waiting for memory means waiting for
// pages to be reclaimed or read back.
const (
	CPUPressure    = "cpu_pressure"
	MemoryPressure = "memory_pressure"
	IOPressure     = "io_pressure"
)

func newPressure(of string) func(*Watcher, string) meter {
	return func(w *Watcher, _ string) meter {
		return newCounted(w, 1e-6, func() (*cgroup.Value, error) { return w.source.reader.OpenPressure(w.unit, of) })
	}
}
