// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package bottleneck measures cpu_bottleneck: the time in which at least one thread
// of a unit is on a CPU.
//
// A [Follower] reads the context switches of all CPUs on behalf of all units. Its
// census finds the unit of each process that runs, and its simultaneity adds up the
// time at k running threads for each unit and each k. A [Reader] is the monitor of
// one unit: it makes the follower follow the unit while its CPU usage can reach the
// lowest threshold.
package bottleneck
