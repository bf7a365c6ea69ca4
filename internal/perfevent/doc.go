// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package perfevent samples the host, cgroups and processes with the kernel's perf
// events: which rights that needs, how many descriptors it takes, attaching, and the
// records, decoded and merged by time. Its rooms switches and uprobe are for CPU-wide
// context switches and for probes in programs.
//
// A host-wide Session has two rings per CPU: one for samples, which wakes its reader
// rarely, and one for the records of processes (fork, exec, mmap, exit), which wakes
// it at once, so that a process of 20 ms is seen while it lives. Other sessions have
// one ring for both.
package perfevent
