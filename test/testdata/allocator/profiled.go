// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !plain

package main

import "runtime"

// The linker keeps the memory profiler because of this reference to runtime.MemProfile.
// net/http/pprof has the same effect.
var _ = func() int { n, _ := runtime.MemProfile(nil, true); return n }()
