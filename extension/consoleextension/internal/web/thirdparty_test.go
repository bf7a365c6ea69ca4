// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestThirdParty checks that THIRD_PARTY lists all third-party files with their
// checksums, and that each package has a licence file.
func TestThirdParty(t *testing.T) {
	list, err := fs.ReadFile(staticFS, "static/third_party/THIRD_PARTY")
	require.NoError(t, err)
	listed, packages, licensed := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(string(list)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		require.Len(t, fields, 4, line)
		b, err := fs.ReadFile(staticFS, "static/third_party/"+fields[1])
		require.NoError(t, err)
		sum := sha256.Sum256(b)
		require.Equal(t, fields[0], hex.EncodeToString(sum[:]), fields[1])
		listed[fields[1]], packages[fields[2]] = true, true
		if strings.HasSuffix(fields[1], "LICENSE") {
			licensed[fields[2]] = true
		}
	}
	require.Equal(t, packages, licensed)
	require.NoError(t, fs.WalkDir(staticFS, "static/third_party", func(name string, e fs.DirEntry, err error) error {
		if name = strings.TrimPrefix(name, "static/third_party/"); err == nil && !e.IsDir() && name != "THIRD_PARTY" {
			require.True(t, listed[name], "%s is not in THIRD_PARTY", name)
		}
		return err
	}))
}
