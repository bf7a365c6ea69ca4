// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package dotnet receives the buffers that the profiler of the OpenTelemetry .NET
// Automatic Instrumentation passes to its exporter plugin. Its HTTP handler receives the
// buffers and converts them into samples.
//
// A request is not trusted. Over a Unix socket, the kernel identifies the process at the
// other end. Profiles are assigned to the unit of that process, even if the request's
// resource names another unit. Over TCP, the kernel cannot identify the process.
// Attributes that name a process, a cgroup or a host are therefore removed. Only the
// container id is kept.
//
// Many goroutines read bodies concurrently, but only one body is decoded at a time.
// Serial decoding allows all senders to share the stored names and stacks, and decoding a
// body takes only microseconds.
package dotnet
