// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package hotunitsextension implements the extension `hot_units`. The extension contains
// the set of units that are currently hot, which `cpu_trigger` publishes and
// `cpu_profiler` watches. Both components find the extension through their host. Only this
// set flows against the direction of the data. The extension does not know why a unit is
// hot.
//
// Components also publish events about decisions and actions through this extension. Other
// components subscribe to events, and webhooks post them. In addition, components provide
// readings through the extension, and register the files from which they read policies.
package hotunitsextension

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
