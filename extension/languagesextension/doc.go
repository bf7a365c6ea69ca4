// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package languagesextension is the extension `languages`. The package shows `cpu_profiler`
// where interpreters keep their stacks, from the time at which it is linked. A collector
// that lists it among its extensions therefore shows the functions of interpreted programs,
// even if the extension is not configured.
//
// It reads the interpreters' layouts with the Go packages of OpenTelemetry's eBPF profiler.
// It is a separate module because these packages need many modules and change often. It
// uses no eBPF: the objects that the library embeds are not linked.
package languagesextension

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
