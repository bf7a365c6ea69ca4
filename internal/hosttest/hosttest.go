// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package hosttest gives tests the real thing: cgroups of their own, processes
// inside them, and a skip that turns into a failure where privileged tests must
// run.
package hosttest

import (
	"os"
	"testing"
)

// SkipUnprivileged skips the test with the reason, or fails it where
// HOTPROFILE_REQUIRE_PRIVILEGED=1 says that this machine can do everything.
func SkipUnprivileged(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("HOTPROFILE_REQUIRE_PRIVILEGED") == "1" {
		t.Fatalf("HOTPROFILE_REQUIRE_PRIVILEGED=1, but: "+format, args...)
	}
	t.Skipf(format, args...)
}
