// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package monitor

// The shares of time in which some thread of the unit waits: for a CPU, for memory (for
// pages that are reclaimed or read back), or for a disk.
const (
	CPUPressure    = "cpu_pressure"
	MemoryPressure = "memory_pressure"
	IOPressure     = "io_pressure"
)

func newPressure(of string) func(*Watcher, string) meter {
	return func(w *Watcher, _ string) meter {
		return newCounted(w, 1e-6, func() (kernelCounter, error) { return w.source.reader.OpenPressure(w.unit, of) })
	}
}
