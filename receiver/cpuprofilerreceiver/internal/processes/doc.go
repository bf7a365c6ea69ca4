// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package processes knows the processes that samples come from: the program of
// each as a resource, its mappings, and the stacks seen in it, interned so that one
// seen before costs no memory.
//
// It has two sources. The kernel's records of forks, execs and mappings arrive with
// the samples and are complete for every process that starts while they are read,
// even one of a few milliseconds. /proc has the processes that ran before, and what
// records do not carry: environment and cgroup. What neither has stays unset and is
// counted.
//
// A [Table] belongs to the goroutine that reads the rings. A [Finder] belongs to
// another one, which looks for the processes that targets name.
package processes
