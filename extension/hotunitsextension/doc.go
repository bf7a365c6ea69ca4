// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package hotunitsextension is the extension `hot_units`. It contains the set of
// units that are currently hot. `cpu_trigger` publishes the set, and
// `cpu_profiler` watches it. Both components find the extension through their
// host. The set is the only information that flows against the direction of the
// data. The extension does not know why a unit is hot.
//
// Components also publish events about decisions and actions through this extension.
// Other components subscribe to events, and webhooks post events. Components also provide
// readings through the extension, and register the files from which they read policies.
package hotunitsextension

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
