// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package processes has the processes of samples. It has the program of each process as a
// resource, its mappings, and its stacks. Stacks are interned, so that a known stack costs
// no memory.
//
// The package has two sources. The kernel's records of forks, execs and mappings arrive
// with the samples. They are complete for every process that starts while they are read,
// even one of a few milliseconds. /proc has the processes that ran before, and the data
// that records do not carry, which are environment and cgroup. Data that neither source has
// stays unset and is counted.
//
// A [Table] belongs to the goroutine that reads the rings. A [Finder] belongs to another
// goroutine, which searches for the processes of targets.
package processes
