// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"debug/buildinfo"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// distributionOf returns the binary that a shipped configuration is intended for.
func distributionOf(config string) string {
	if filepath.Base(config) == "kubernetes.yaml" {
		return kubernetesBinary
	}
	return collectorBinary
}

func TestEveryShippedConfigurationIsValid(t *testing.T) {
	files, err := filepath.Glob("../../config/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { validate(t, distributionOf(file), file) })
	}
	for _, name := range []string{"node", "kubernetes", "gateway"} {
		file := filepath.Join("../../config", name+".yaml")
		t.Run(name+".yaml with references", func(t *testing.T) { validate(t, distributionOf(file), file, "HOTPROFILE_INLINE_ATTRIBUTES=false") })
	}
	for _, name := range []string{"node", "gateway"} {
		t.Run(name+".yaml with a console", func(t *testing.T) { validate(t, collectorBinary, shippedWithConsole(t, name)) })
	}
	t.Run("node.yaml in a cloud", func(t *testing.T) { validate(t, kubernetesBinary, shippedForClouds(t, "node")) })
}

// TestEveryConfigurationOfTheChartIsValid checks the configurations in the renderings of
// the chart. These configurations are for the distribution in the image.
func TestEveryConfigurationOfTheChartIsValid(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(filepath.Dir(rendered), "*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		content, err := os.Open(file)
		require.NoError(t, err)
		defer content.Close()
		for documents := yaml.NewDecoder(content); ; {
			var object struct {
				Kind     string
				Metadata struct{ Name string }
				Data     map[string]string
			}
			if err := documents.Decode(&object); errors.Is(err, io.EOF) {
				break
			} else if object.Kind != "ConfigMap" {
				require.NoError(t, err)
				continue
			}
			t.Run(filepath.Base(file)+" "+object.Metadata.Name, func(t *testing.T) {
				config := filepath.Join(t.TempDir(), "config.yaml")
				require.NoError(t, os.WriteFile(config, []byte(object.Data["config.yaml"]), 0o644))
				validate(t, kubernetesBinary, config)
			})
		}
	}
}

// TestDistributionForNodesIsSmall checks the size of the distribution for
// nodes. It must not include a Kubernetes client or a cloud SDK.
func TestDistributionForNodesIsSmall(t *testing.T) {
	file, err := os.Stat(collectorBinary)
	require.NoError(t, err)
	require.LessOrEqual(t, file.Size(), int64(50_000_000))
	build, err := buildinfo.ReadFile(collectorBinary)
	require.NoError(t, err)
	stripped, err := os.ReadFile(collectorBinary)
	require.NoError(t, err)
	require.NotContains(t, string(stripped), "stack_delta_page_to_info", "the objects of the eBPF profiler are GPL-2.0")
	for _, module := range build.Deps {
		require.NotRegexp(t, `^(k8s\.io/client-go|github\.com/aws/aws-sdk-go.*|github\.com/Azure/azure-sdk.*|cloud\.google\.com/go)$`, module.Path)
	}
}

func validate(t *testing.T, binary, config string, env ...string) {
	t.Helper()
	cmd := exec.Command(binary, "validate", "--config", config)
	cmd.Env = append(os.Environ(), "HOTPROFILE_OTLP_ENDPOINT=backend.example:4317", "K8S_NODE_NAME=node")
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// shippedForClouds returns the path of a shipped configuration with
// resource_detection. If resource_detection is commented out in the
// configuration, it is uncommented and added to the pipeline.
func shippedForClouds(t testing.TB, name string) string {
	t.Helper()
	file := filepath.Join("../../config", name+".yaml")
	if name == "kubernetes" {
		return file
	}
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	comment := regexp.MustCompile(`(?m)^  # resource_detection:\n(  #   .*\n)+`)
	require.Len(t, comment.FindAll(content, -1), 1)
	text := comment.ReplaceAllStringFunc(string(content), func(s string) string {
		return regexp.MustCompile(`(?m)^  # `).ReplaceAllString(s, "  ")
	})
	text = strings.Replace(text, "[memory_limiter, ", "[memory_limiter, resource_detection, ", 1)
	require.Contains(t, text, "resource_detection, resource/node, cpu_trigger]")
	file = filepath.Join(t.TempDir(), name+".yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	return file
}

// shippedWithConsole returns the path of a shipped configuration in
// which all settings of the console are uncommented.
func shippedWithConsole(t testing.TB, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("../../config", name+".yaml"))
	require.NoError(t, err)
	text := regexp.MustCompile(`(?m)^( *)# (console:|  directory: .*/console|hot_units:|webhooks: .*|logs: \{.*|metrics: \{.*)$`).ReplaceAllString(string(content), "$1$2")
	text = regexp.MustCompile(`(?m)^(  extensions: \[.*)\] #.*$`).ReplaceAllString(text, "$1, console]")
	text = regexp.MustCompile(`(?m)^(      exporters: \[otlp_grpc)\] #.*console$`).ReplaceAllString(text, "$1, console]")
	require.Equal(t, 3, strings.Count(text, "console]\n")+strings.Count(text, "console]}\n")-1, "%s", text)
	text = strings.Replace(text, "${env:SLACK_WEBHOOK_URL}", "https://hooks.example.com/x", 1)
	file := filepath.Join(t.TempDir(), name+".yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	return file
}

// deleteDisabled deletes attributes that a cloud's detectors
// set by default but the configuration disables.
func deleteDisabled(t testing.TB, attributes map[string]string, config, cloud string) {
	t.Helper()
	content, err := os.ReadFile(config)
	require.NoError(t, err)
	var parsed struct {
		Processors struct {
			Detection map[string]yaml.Node `yaml:"resource_detection"`
		} `yaml:"processors"`
	}
	require.NoError(t, yaml.Unmarshal(content, &parsed))
	for _, detector := range map[string][]string{
		"ec2": {"ec2"}, "gce": {"gcp"}, "azure": {"azure"}, "eks": {"eks", "ec2"}, "gke": {"gcp"}, "aks": {"aks", "azure"},
	}[cloud] {
		var settings struct {
			Attributes map[string]struct{ Enabled bool } `yaml:"resource_attributes"`
		}
		node, ok := parsed.Processors.Detection[detector]
		require.True(t, ok, "%s has no settings of the detector %s", config, detector)
		require.NoError(t, node.Decode(&settings))
		for key, s := range settings.Attributes {
			if !s.Enabled {
				delete(attributes, key)
			}
		}
	}
}
