// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// TestShippedConfigurationsServeTheirMetricsAtPortsOfTheirOwn checks that configurations that
// may run on the same host use different ports. It covers the configurations for a node, for
// the .NET services of a node, for a gateway and for a first try. The configuration for
// Kubernetes is not covered, because it runs in a pod.
func TestShippedConfigurationsServeTheirMetricsAtPortsOfTheirOwn(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "config", "*.yaml"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 5)
	by := map[int]string{}
	for _, file := range files {
		if filepath.Base(file) == "kubernetes.yaml" {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var c struct {
			Service struct {
				Telemetry struct {
					Metrics struct {
						Readers []struct {
							Pull struct {
								Exporter struct {
									Prometheus struct{ Port int }
								}
							}
						}
					}
				}
			}
		}
		require.NoError(t, yaml.Unmarshal(text, &c))
		require.Len(t, c.Service.Telemetry.Metrics.Readers, 1, file)
		port := c.Service.Telemetry.Metrics.Readers[0].Pull.Exporter.Prometheus.Port
		require.Positive(t, port, file)
		require.Empty(t, by[port], "%s has port %d too", file, port)
		by[port] = file
	}
}
