// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package cgroup reads the host's control groups: which hierarchies are mounted
// (v1, hybrid, v2), the cgroup of a process in each of them, which of these tells
// its [Group] apart, how much CPU time and memory that used and how much it may
// use.
//
// Everything is read below a root directory, so that a collector in a container
// can read the host's trees through a mount of the host's root. Paths that the
// kernel shows relative to a private cgroup namespace are resolved against the
// host's tree. Every file is read up to a bound.
//
// A [Tree] is immutable and safe for concurrent use. A [Reader] keeps files open
// between readings and belongs to one goroutine.
package cgroup
