// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cputriggerprocessor

import "time"

var started = time.Now()

// cpuTime is the time that passed, where CPU time is not at hand.
func cpuTime() time.Duration { return time.Since(started) }
