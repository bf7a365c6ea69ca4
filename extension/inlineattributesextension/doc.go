// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package inlineattributesextension implements the extension `inline_attributes`, a
// middleware of OTLP exporters. It converts requests with profiles to the form that
// collectors before 0.161 used, and changes no other requests. In the old form, resource
// and scope attributes are written out instead of being references into the dictionary.
package inlineattributesextension

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
