// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package agreement holds how other programs compute CPU figures, and how near
// two such figures must be to each other when they come from the same two
// instants. Tests hold our figures against theirs with it.
//
// Definitions differ, and every conversion is made here:
//
//   - Everything is brought to cores: CPU seconds per second. What top, gopsutil
//     and docker stats show as a percentage is one of a single core, so that 1.5
//     busy cores are 150; our cpu_utilization is one of the limit.
//   - docker stats and cAdvisor read a container's cgroup; top, gopsutil and
//     /proc/PID/stat know processes. The loads here are a single process, so that
//     both are the same CPU time.
//   - docker stats uses the time that /proc/stat accounted for as the elapsed time. That
//     time does not include the time that a hypervisor stole.
//
// No two programs read at the same moment. So our own figures are read before, during and
// after each reading of another program. The other program can have read at any instant of
// that time. Its figure must be within the range of our figures over these instants. A busy
// machine widens that range, but does not fail a test.
package agreement
