// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cputime

// threadTime is 0: nothing is sampled, and so nothing is to be measured.
func threadTime() int64 { return 0 }
