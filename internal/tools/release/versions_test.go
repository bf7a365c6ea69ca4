// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package release tests that the configurations of the collector builder use the same
// versions.
package release

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}

func TestTheEBPFCollectorHasTheSameVersions(t *testing.T) {
	node, ebpf := read(t, "../../../builder-config.yaml"), read(t, "../../../builder-config.ebpf.yaml")
	version := regexp.MustCompile(`(?m)^  version: (\S+)$`)
	require.NotNil(t, version.FindStringSubmatch(node))
	require.Equal(t, version.FindStringSubmatch(node), version.FindStringSubmatch(ebpf))
	module := regexp.MustCompile(`gomod: (\S+) (\S+)`)
	versions := map[string]string{}
	for _, m := range module.FindAllStringSubmatch(node, -1) {
		versions[m[1]] = m[2]
	}
	for _, m := range module.FindAllStringSubmatch(ebpf, -1) {
		if m[1] != "go.opentelemetry.io/ebpf-profiler" {
			require.NotEmpty(t, m[2])
			require.Equal(t, versions[m[1]], m[2], m[1])
		}
	}
}
