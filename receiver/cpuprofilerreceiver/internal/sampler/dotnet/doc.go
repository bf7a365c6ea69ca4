// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package dotnet receives the buffers that the profiler of the OpenTelemetry .NET Automatic
// Instrumentation passes to its exporter plugin. It has an HTTP handler for the buffers,
// and converts them into samples.
//
// A request is not trusted. Over a Unix socket the kernel identifies the process at the
// other end. Profiles are assigned to the unit of that process, even if its resource claims
// another unit. Over TCP the kernel cannot identify the process, so claims of a process, a
// cgroup or a host are removed. Only a container's id stays.
//
// Many goroutines read bodies at once, but only one decodes a body at a time. Decoding
// takes microseconds, and this way names and stacks are stored once for all senders.
package dotnet
