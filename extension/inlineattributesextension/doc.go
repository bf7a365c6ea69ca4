// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package inlineattributesextension is the extension `inline_attributes`, a middleware of
// OTLP exporters. It converts requests with profiles to the form that collectors before
// 0.161 used. In this form, resource and scope attributes are written out instead of being
// references into the dictionary. It changes no other request.
package inlineattributesextension

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
