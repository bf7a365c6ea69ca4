// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package consoleextension implements the `console` extension. The extension records in a
// directory when and why units were hot, together with their profiles. It also serves web
// pages about these units. The `console` exporter passes OTLP data to the extension.
//
// internal/intake converts OTLP for the store, internal/store keeps the data, and
// internal/web serves the pages.
package consoleextension

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
