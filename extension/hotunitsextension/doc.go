// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package hotunitsextension is the extension `hot_units`: the set of units that
// are hot now, written by `cpu_trigger` and watched by `cpu_profiler`, which
// find it through their host. It is the one fact that goes back against the way
// of the data, and knows nothing of why a unit is hot.
package hotunitsextension

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
