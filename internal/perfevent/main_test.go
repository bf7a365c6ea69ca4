// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// helperVariable makes the test binary be one of the programs that tests sample.
const helperVariable = "PERFEVENT_TEST_HELPER"

func TestMain(m *testing.M) {
	if name := os.Getenv(helperVariable); name != "" {
		os.Exit(runHelper(name))
	}
	goleak.VerifyTestMain(m)
}
