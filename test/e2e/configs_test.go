// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryShippedConfigurationIsValid(t *testing.T) {
	files, err := filepath.Glob("../../config/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			cmd := exec.Command(collectorBinary, "validate", "--config", file, "--feature-gates=service.profilesSupport")
			cmd.Env = append(os.Environ(), "HOTPROFILE_OTLP_ENDPOINT=backend.example:4317", "K8S_NODE_NAME=node")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
		})
	}
}
