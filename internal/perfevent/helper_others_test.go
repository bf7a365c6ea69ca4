// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package perfevent

func runHelper(string) int { return 2 }
