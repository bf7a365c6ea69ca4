// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package languagesextension implements the extension `languages`. If the package is
// linked, `cpu_profiler` can find the stacks of interpreters. A collector that is built
// with this extension therefore shows the functions of interpreted programs, even if the
// extension is not configured.
//
// The package reads the layouts of interpreters with the Go packages of OpenTelemetry's
// eBPF profiler. It is a separate Go module because these packages change often and depend
// on many other modules. It uses no eBPF, and the eBPF objects that the library embeds are
// not linked.
package languagesextension

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
