// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package dotnet is the intake of what the profiler of the OpenTelemetry .NET
// Automatic Instrumentation hands to its exporter plugin: an HTTP handler that
// takes the profiler's buffers as they are, and the way from these to samples.
//
// Nothing that a sender says is trusted. What it is charged with, the unit that
// its profiles are held or let out with, comes from the kernel: over a Unix
// socket from the process at the other end, whatever its resource claims. Over
// TCP there is no such witness, so that claims of a process, a cgroup or a host
// are taken away there, and a container's id alone is left.
//
// Bodies are read by many goroutines at once, decoded by one at a time: that
// takes microseconds, and so names and stacks are held once for all senders.
package dotnet
