// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package pprofexporter is the exporter `pprof`: it collects the profiles of a
// unit and trigger in memory, and writes each profile type as a gzipped pprof
// file for `go tool pprof` when no more arrive.
//
// openFiles decides which profiles share a file and when it is finished; package pprofconv
// turns OTLP into pprof; queue has finished files on their way to the disk; fileName and
// directory are about files on disk.
package pprofexporter

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
