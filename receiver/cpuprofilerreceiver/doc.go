// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package cpuprofilerreceiver is the receiver `cpu_profiler`. It samples the code that runs
// on the CPUs of a host, of cgroups or of processes. It resolves addresses to names and
// emits OTLP profiles.
//
// The package contains the configuration, the list of samplers, and the emitter that passes
// their buffers to the next consumer. internal/sampler contains one folder per sampler.
package cpuprofilerreceiver

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
