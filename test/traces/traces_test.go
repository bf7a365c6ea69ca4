// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write what is computed from the schedules and traces: labels, synthetic traces, the table in the docs")

func schedules(t testing.TB) []*Schedule {
	t.Helper()
	all, err := LoadSchedules("schedules")
	require.NoError(t, err)
	return all
}

// golden compares a file with its expected contents. With
// -update, it writes the file instead.
func golden(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		return
	}
	have, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, want, string(have), "%s is not what is computed: run go test ./test/traces -update and look at what changed", file)
}

func TestLabelsFollowFromSchedules(t *testing.T) {
	golden(t, "labels.txt", FormatLabels(schedules(t)))
}

func TestSyntheticTracesFollowFromSchedules(t *testing.T) {
	for _, s := range schedules(t) {
		if s.Recorded {
			continue
		}
		var b bytes.Buffer
		header, rows := Synthesize(s)
		require.NoError(t, WriteTrace(&b, header, rows))
		golden(t, filepath.Join("synthetic", s.Name+".csv"), b.String())
	}
}
