// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package hotunitsreceiver is the receiver `hot_units`. It emits the data that components
// publish in the extension `hot_units`. Events are emitted as log records, and readings
// are emitted as metrics. The two signals share only their configuration.
package hotunitsreceiver

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
