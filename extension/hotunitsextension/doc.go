// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package hotunitsextension is the extension `hot_units`: the set of units that
// are hot now. `cpu_trigger` publishes it and `cpu_profiler` watches it; both find
// the extension through their host. It is the only thing that flows against the
// direction of the data. It does not know why a unit is hot.
package hotunitsextension

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
