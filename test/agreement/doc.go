// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package agreement computes CPU figures in the same way as other programs, so that tests
// can compare our figures with the figures of these programs. The package also computes the
// maximum difference between two such figures that were read at the same two moments.
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
// Two programs never read at exactly the same moment. Our own figures are therefore read
// before, during and after each reading of another program, because the program may have
// read at any of these moments. The figure of the other program must be within the range of
// our figures. A busy machine widens the range, but does not make a test fail.
package agreement
