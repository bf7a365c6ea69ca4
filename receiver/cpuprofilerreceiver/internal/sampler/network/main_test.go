// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package network

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// programVariable is the environment variable that makes the test binary run as the sampled
// program.
const programVariable = "HOTPROFILE_NETWORK_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		os.Exit(obey())
	}
	goleak.VerifyTestMain(m)
}
