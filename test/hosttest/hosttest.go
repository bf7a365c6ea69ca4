// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package hosttest provides real cgroups with processes, and CPUs that can
// be taken offline. It also skips tests that need privileges, or fails
// them if privileged tests must run.
package hosttest

import (
	"os"
	"runtime"
	"testing"
)

// SkipUnprivileged skips the test with the given reason. If HOTPROFILE_REQUIRE_PRIVILEGED
// is 1, it fails the test instead.
func SkipUnprivileged(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("HOTPROFILE_REQUIRE_PRIVILEGED") == "1" {
		t.Fatalf("HOTPROFILE_REQUIRE_PRIVILEGED=1, but: "+format, args...)
	}
	t.Skipf(format, args...)
}

// Heap returns the size in bytes of all live objects on the heap. It runs two
// collections, because objects in a sync.Pool survive the first collection.
func Heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
