// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cgroup

const supported = false

func inode(string) (uint64, error) { return 0, NeedsLinux }

func childless(string) bool { return false }

func writableByUsers(string) bool { return false }
