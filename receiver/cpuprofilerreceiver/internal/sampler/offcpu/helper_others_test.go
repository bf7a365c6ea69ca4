// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package offcpu

func helper([]string) int { return 2 }

func allocate() int { return 2 }
