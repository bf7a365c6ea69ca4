// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package agreement computes CPU figures in the same way as other programs. It also
// computes how far two such figures may differ if they come from the same two instants.
// Tests use it to compare our figures with the figures of other programs.
//
// The definitions of the figures differ, so the package converts them:
//
//   - All figures are converted to cores, which are CPU seconds per second. The percentages
//     of top, gopsutil and docker stats are relative to one core, so 1.5 busy cores are
//     150 %. The percentage of our cpu_utilization is relative to the limit.
//   - docker stats and cAdvisor read a container's cgroup. top, gopsutil and /proc/PID/stat
//     read processes. The loads here are a single process, so the CPU times are the same.
//   - docker stats uses the time that /proc/stat accounted for as the elapsed time. This
//     time does not include the time that a hypervisor stole.
//
// No two programs read at the same moment. So our own figures are read before, during and
// after each reading of another program. The other program can have read at any instant
// of this time. Its figure must be within the range of our figures over these instants. A
// busy machine widens the range, but does not make a test fail.
package agreement
