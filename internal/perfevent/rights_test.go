// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestModeOfTheKernel(t *testing.T) {
	require.Equal(t, KernelStacks, Rights{}.KernelMode(true))
	require.Equal(t, KernelTime, Rights{}.KernelMode(false))
	require.Equal(t, KernelExcluded, Rights{Kernel: errors.New("no")}.KernelMode(true))
}
