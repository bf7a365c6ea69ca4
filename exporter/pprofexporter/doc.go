// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package pprofexporter implements the exporter `pprof`. The exporter collects the
// profiles of each unit and trigger in memory. When no more profiles arrive, it writes
// each profile type as a gzipped pprof file for `go tool pprof`.
//
// openFiles decides which profiles share a file and when a file is finished. Package
// pprofconv converts OTLP to pprof. queue contains the finished files that wait for the
// disk. fileName and directory handle the files on disk.
package pprofexporter

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
