// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package processes holds what is known about the processes that samples come
// from: which program each one runs, as a resource; what is mapped into it; and
// the stacks seen in it, interned so that one seen before costs no memory.
//
// Two sources tell of processes. The kernel's records of forks, execs and
// mappings arrive with the samples and are complete for whatever started while
// they were read, a process of a few milliseconds included. /proc tells of what
// ran before, and of what records do not carry: environment and cgroup. What
// neither tells stays unset and is counted.
//
// A Table belongs to one goroutine, the one that reads the rings. A Finder
// belongs to another one, which looks for the processes that targets name.
package processes
