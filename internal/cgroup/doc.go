// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package cgroup holds what the host's control groups say: which hierarchies
// are mounted (v1, hybrid, v2), where a process is in each of them, which
// cgroup is the unit that a decision is about, how much CPU time it used and
// how much it may use.
//
// Everything is read below a root directory, so that a collector in a container
// can read the host's trees through a mount of the host's root. Paths that the
// kernel shows relative to a private cgroup namespace are resolved against the
// host's tree.
//
// A [Tree] is immutable and safe for concurrent use. A [Reader] keeps files open
// between readings and belongs to one goroutine. Neither knows of policies.
package cgroup
