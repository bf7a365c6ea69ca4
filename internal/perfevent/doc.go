// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package perfevent is the binding to the kernel's perf events: what may be
// attached and with which rights, how many descriptors it takes, attaching to
// the host, a cgroup or a process, and the rings that the kernel writes its
// records to, decoded and merged by time.
//
// A Session owns two rings per CPU: one for samples, which wakes its reader
// rarely, and one for what tells whose samples they are (fork, exec, mmap,
// exit), which wakes it at once, so that a process of 20 ms is seen while it
// lives. Where CPU-wide events are not permitted both share the second ring.
package perfevent
