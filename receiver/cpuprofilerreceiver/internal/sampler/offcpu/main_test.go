// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package offcpu

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// helperVariable makes the test binary run as a program that is sampled. If its value is
// "allocate", the program allocates memory until its standard input is closed. For all
// other values, the program waits. See helper.
const helperVariable = "HOTPROFILE_OFFCPU_HELPER"

func TestMain(m *testing.M) {
	switch mode := os.Getenv(helperVariable); {
	case mode == "allocate":
		os.Exit(allocate())
	case mode != "" && len(os.Args) == 4:
		os.Exit(helper(os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}
