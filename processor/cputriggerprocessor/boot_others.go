// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cputriggerprocessor

import "time"

// bootTime is not needed where there is no procfs.
func bootTime(time.Time) time.Time { return time.Time{} }
