// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// helperVariable has the test binary be a program that is sampled.
const helperVariable = "HOTPROFILE_OFFCPU_HELPER"

func TestMain(m *testing.M) {
	if os.Getenv(helperVariable) != "" && len(os.Args) == 4 {
		os.Exit(helper(os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}
