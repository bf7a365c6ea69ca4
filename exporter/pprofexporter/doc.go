// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package pprofexporter is the exporter `pprof`: it collects the profiles of a
// unit and trigger in memory, and writes each profile type as a gzipped pprof
// file for `go tool pprof` when no more come.
//
// Translation of one profile type is the business of profileFile, names and
// files on disk that of directory; exporter decides which profiles go together
// and when they are done.
package pprofexporter

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
