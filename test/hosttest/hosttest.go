// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package hosttest gives tests real cgroups with processes in them, CPUs to take
// offline, and skips that become failures if privileged tests must run.
package hosttest

import (
	"os"
	"runtime"
	"testing"
)

// SkipUnprivileged skips the test with the reason, or fails it if
// HOTPROFILE_REQUIRE_PRIVILEGED is 1.
func SkipUnprivileged(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("HOTPROFILE_REQUIRE_PRIVILEGED") == "1" {
		t.Fatalf("HOTPROFILE_REQUIRE_PRIVILEGED=1, but: "+format, args...)
	}
	t.Skipf(format, args...)
}

// Heap returns the bytes of the heap that live objects take. It collects twice: what
// sync.Pool holds survives the first time.
func Heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
