// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package cpuprofilerreceiver is the receiver `cpu_profiler`: it samples what
// runs on the CPUs of a host, of cgroups or of processes, resolves the addresses to
// names, and emits OTLP profiles.
//
// It has the configuration, the list of samplers, and the emitter that passes their
// buffers to the next consumer. internal/sampler has one folder per sampler.
package cpuprofilerreceiver

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
