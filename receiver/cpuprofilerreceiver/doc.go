// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package cpuprofilerreceiver is the receiver `cpu_profiler`: it samples what
// runs on the CPUs of a host, of cgroups or of processes, gives the addresses
// their names, and hands over OTLP profiles.
//
// It wires samplers to two buffers and these to the next consumer. What a sample
// is and how it is taken is the samplers' business, in the internal packages.
package cpuprofilerreceiver

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
