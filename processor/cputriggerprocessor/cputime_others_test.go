// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cputriggerprocessor

import "time"

var started = time.Now()

// cpuTime returns the elapsed time, because the CPU time is not available here.
func cpuTime() time.Duration { return time.Since(started) }
