// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cputime

// threadTime returns 0: nothing is sampled, so there is nothing to measure.
func threadTime() int64 { return 0 }
