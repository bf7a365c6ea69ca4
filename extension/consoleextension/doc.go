// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package consoleextension is the extension `console`. It records in a directory which
// units were hot, when and why, together with their profiles. It serves web pages about
// these units. The exporter `console` passes OTLP data to the extension.
//
// internal/intake converts OTLP for the store, internal/store keeps the data, and
// internal/web serves the pages.
package consoleextension

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
