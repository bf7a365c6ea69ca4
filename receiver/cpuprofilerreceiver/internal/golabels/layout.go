// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package golabels

import (
	"errors"
	"fmt"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/goprogram"
)

// These constants are the indexes of the probed functions in query. setLabels sets the
// labels of the current goroutine to its argument. endGoroutine ends the current goroutine.
// freeMemory is called before the garbage collector frees memory.
const (
	setLabels = iota
	endGoroutine
	freeMemory
	probes
)

// query selects the functions for probes.
var query = goprogram.Query{Functions: []string{
	setLabels:    "runtime/pprof.runtime_setProfLabel",
	endGoroutine: "runtime.goexit1",
	freeMemory:   "runtime.gcMarkTermination",
}}

// labelsOffset maps the minor version of Go to the offset of runtime.g.labels. Since Go
// 1.24, labels are a list and not a map.
var labelsOffset = map[int]int{24: 352, 25: 344, 26: 352}

// errNoLabels is returned for a program that never sets labels.
var errNoLabels = errors.New("the program does not set labels")

// layout contains the data about a program that is needed for its labels.
// sites are the file offsets of the probes for query. offset is the
// offset of the labels in a runtime.g.
type layout struct {
	sites  [probes]uint64
	offset int
}

// layoutOf returns the layout of a program for a machine.
func layoutOf(p *goprogram.Program, goarch string) (l layout, err error) {
	if p.Functions[setLabels] == nil {
		return l, errNoLabels
	}
	minor, ok := goprogram.Release(p.Version)
	if l.offset = labelsOffset[minor]; !ok || l.offset == 0 || goprogram.Machines[goarch] != p.Machine {
		return l, fmt.Errorf("the labels of %q for %v are at an unknown place: known are go1.24 to go1.26 on amd64 and arm64", p.Version, p.Machine)
	}
	for i, f := range p.Functions {
		if f == nil {
			return l, fmt.Errorf("the program has no %s", query.Functions[i])
		}
		// A hit of a probe at the start of the function would cost five times as much as a
		// hit after the stack check. After the stack check, the kernel can emulate the
		// instruction.
		l.sites[i] = f.Offset + f.AfterStackCheck(p.Machine)
		if l.sites[i] == f.Offset && i != freeMemory {
			return l, fmt.Errorf("%s has no stack check", query.Functions[i])
		}
	}
	return l, nil
}
