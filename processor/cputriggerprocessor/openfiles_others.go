// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cputriggerprocessor

// fileLimit is not needed where there are no control groups.
func fileLimit() uint64 { return 0 }
