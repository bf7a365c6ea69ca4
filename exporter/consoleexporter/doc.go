// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package consoleexporter implements the exporter `console`. It writes the profiles,
// events and readings of pipelines to the store of the extension `console`.
package consoleexporter

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
