// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package dotnet receives what the profiler of the OpenTelemetry .NET Automatic
// Instrumentation passes to its exporter plugin: an HTTP handler for the profiler's
// buffers, and their conversion into samples.
//
// Nothing in a request is trusted. The unit that its profiles are assigned to comes
// from the kernel: over a Unix socket it is that of the process at the other end,
// whatever its resource claims. Over TCP the kernel cannot tell, so claims of a
// process, a cgroup or a host are removed, and only a container's id stays.
//
// Bodies are read by many goroutines at once and decoded by one at a time: decoding
// takes microseconds, and so names and stacks are stored once for all senders.
package dotnet
