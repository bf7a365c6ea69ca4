// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zapcore"
)

func TestPolicyFilesAreThoseThatAreRead(t *testing.T) {
	r := newRig(t, zapcore.InfoLevel)
	require.Empty(t, r.PolicyFiles())
	removeA := r.AddPolicyFile(PolicyFile{Reader: first, Path: "/a"})
	removeB := r.AddPolicyFile(PolicyFile{Reader: second, Path: "/a"})
	files := r.PolicyFiles()
	require.Len(t, files, 2)
	require.Equal(t, first, files[0].Reader)
	require.Equal(t, second, files[1].Reader)
	removeA()
	removeA()
	files = r.PolicyFiles()
	require.Len(t, files, 1)
	require.Equal(t, second, files[0].Reader)
	removeB()
	require.Empty(t, r.PolicyFiles())
	require.Empty(t, (*HotUnits)(nil).PolicyFiles())
}
