// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

// Config has no keys: an empty `hot_units:` is all there is to write.
type Config struct{}
