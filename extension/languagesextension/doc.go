// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package languagesextension is the extension `languages`. Its package tells `cpu_profiler`
// where interpreters keep their stacks, from the time at which it is linked in: a collector
// that lists it among its extensions shows the functions of interpreted programs, whether
// the extension is configured or not.
//
// It reads the interpreters' layouts with the Go packages of OpenTelemetry's eBPF profiler.
// These need many modules and their interfaces change often, so it is a module of its own.
// It uses no eBPF: the objects that the library embeds are not linked.
package languagesextension

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
