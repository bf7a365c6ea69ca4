// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package languages

func readMemory(int, uint64, []byte) int { return 0 }
