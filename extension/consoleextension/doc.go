// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package consoleextension is the extension `console`. It keeps a record of hot units in
// a directory. The record contains the times and the reasons, and the profiles of the
// units. The extension also serves web pages about these units. The exporter `console`
// passes OTLP data to the extension.
//
// internal/intake converts OTLP for the store, internal/store keeps the data, and
// internal/web serves the pages.
package consoleextension

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
