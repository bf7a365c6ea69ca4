// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBenchstatsTablesAreReadByPackageAndUnit(t *testing.T) {
	got, err := parseBenchstat(strings.NewReader(`goos: linux
goarch: amd64
pkg: github.com/hotprofile/hotprofile/internal/samples
cpu: some
,a.txt
,sec/op,CI
Add/stacks=1-2,4.4e-08,3%
geomean,4.4e-08

,a.txt
,allocs/op,CI
Add/stacks=1-2,0,0%

pkg: github.com/hotprofile/hotprofile/internal/trigger
,a.txt
,sec/op,CI
Evaluate/engine-2,1.5e-03,∞
`))
	require.NoError(t, err)
	require.Equal(t, map[string]figures{
		"internal/samples/Add/stacks=1":    {"sec/op": {4.4e-08, "3%"}, "allocs/op": {0, "0%"}},
		"internal/trigger/Evaluate/engine": {"sec/op": {1.5e-03, "∞"}},
	}, got)
}

func TestPatternMatchesOneBenchmark(t *testing.T) {
	require.Equal(t, `^BenchmarkDotnetIntake$/^baseline=read$/^tcp$`, pattern("DotnetIntake/baseline=read/tcp"))
}

func TestChosenBenchmarksAreThere(t *testing.T) {
	for _, p := range append(append([]hotPath{}, hotPaths...), growth...) {
		for _, name := range []string{p.ours, p.baseline} {
			if name == "" {
				continue
			}
			top, _, _ := strings.Cut(name, "/")
			files, err := filepath.Glob(filepath.Join("../..", p.pkg, "*_test.go"))
			require.NoError(t, err)
			found := false
			for _, file := range files {
				text, err := os.ReadFile(file)
				require.NoError(t, err)
				found = found || strings.Contains(string(text), "func Benchmark"+top+"(b *testing.B)")
			}
			require.True(t, found, "no Benchmark%s in %s", top, p.pkg)
		}
	}
}

func TestDurationsHaveThreeDigits(t *testing.T) {
	for seconds, want := range map[float64]string{1.5e-9: "1.50 ns", 44.4e-9: "44.4 ns", 1.234e-6: "1.23 µs", 0.1234: "123 ms", 2: "2.00 s"} {
		require.Equal(t, want, duration(seconds))
	}
}
