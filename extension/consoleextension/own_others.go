// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package consoleextension

// cpuSeconds returns 0, because the CPU time of this process is unknown.
func cpuSeconds() float64 { return 0 }
