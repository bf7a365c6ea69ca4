// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package inlineattributesextension is the extension `inline_attributes`, a middleware of
// OTLP exporters. It writes requests with profiles in the form of collectors before 0.161.
// This form has resource and scope attributes written out instead of as references into the
// dictionary. It changes no other request.
package inlineattributesextension

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
