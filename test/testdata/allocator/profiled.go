// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !plain

package main

import "runtime"

// A reference to runtime.MemProfile links the memory profiler, as net/http/pprof does.
var _ = func() int { n, _ := runtime.MemProfile(nil, true); return n }()
