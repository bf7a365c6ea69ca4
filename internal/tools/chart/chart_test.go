// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package chart tests the variants of deploy/helm/hotprofile. Each variant must
// decode strictly into the types of the Kubernetes API, and must match the
// configurations and the docs.
package chart

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const (
	root  = "../../../"
	chart = root + "deploy/helm/hotprofile"
)

var update = flag.Bool("update", false, "write the files below testdata, which the end-to-end test reads")

// helm runs the program that `make chart` builds.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	program := os.Getenv("HOTPROFILE_HELM")
	require.NotEmpty(t, program, "HOTPROFILE_HELM is not set: run make chart")
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), errors.Join(err, errors.New(stderr.String()))
	}
	return stdout.String(), nil
}

// arguments returns the arguments of `helm template` or `helm lint`, with
// the given values.
func arguments(command string, values ...string) []string {
	args := []string{command, chart, "--namespace", "hotprofile"}
	if command == "template" {
		args = []string{command, "hotprofile", chart, "--namespace", "hotprofile"}
	}
	for _, value := range values {
		args = append(args, "--set-json", value)
	}
	return args
}

// documents renders the chart and decodes each document into the type of its kind.
func documents(t *testing.T, values ...string) map[string]any {
	t.Helper()
	out, err := helm(t, arguments("template", values...)...)
	require.NoError(t, err)
	objects, err := decode(out)
	require.NoError(t, err)
	return objects
}

// decode decodes documents like an API server with strict field validation. The key of an
// object is its kind and name.
func decode(rendered string) (map[string]any, error) {
	objects := map[string]any{}
	for _, document := range strings.Split(rendered, "\n---\n") {
		var head struct {
			APIVersion, Kind string
			Metadata         struct{ Name string }
		}
		encoded, err := yaml.YAMLToJSONStrict([]byte(document))
		if err != nil {
			return nil, err
		}
		if err := yaml.Unmarshal(encoded, &head); err != nil || head.Kind == "" {
			return nil, errors.Join(err, errors.New("no object: "+document))
		}
		object, ok := map[string]any{
			"v1 ConfigMap":                                    new(corev1.ConfigMap),
			"v1 Service":                                      new(corev1.Service),
			"v1 ServiceAccount":                               new(corev1.ServiceAccount),
			"apps/v1 DaemonSet":                               new(appsv1.DaemonSet),
			"apps/v1 Deployment":                              new(appsv1.Deployment),
			"networking.k8s.io/v1 NetworkPolicy":              new(networkingv1.NetworkPolicy),
			"rbac.authorization.k8s.io/v1 ClusterRole":        new(rbacv1.ClusterRole),
			"rbac.authorization.k8s.io/v1 ClusterRoleBinding": new(rbacv1.ClusterRoleBinding),
			"monitoring.coreos.com/v1 PodMonitor":             new(monitoringv1.PodMonitor),
		}[head.APIVersion+" "+head.Kind]
		if !ok {
			return nil, errors.New("no type for " + head.APIVersion + " " + head.Kind)
		}
		unknown, err := json.UnmarshalStrict(encoded, object)
		if err := errors.Join(append(unknown, err)...); err != nil {
			return nil, err
		}
		objects[head.Kind+" "+head.Metadata.Name] = object
	}
	return objects, nil
}

const backend = `otlp.endpoint="backend.example:4317"`

var (
	agentObjects   = []string{"ServiceAccount hotprofile", "ClusterRole hotprofile", "ClusterRoleBinding hotprofile", "ConfigMap hotprofile-agent", "DaemonSet hotprofile-agent"}
	gatewayObjects = append(slices.Clone(agentObjects), "ConfigMap hotprofile-gateway", "Service hotprofile-gateway", "Deployment hotprofile-gateway", "NetworkPolicy hotprofile-gateway")
)

// variants lists the ways to use the chart. The end-to-end test validates the
// configurations of the variants that are stored below testdata.
var variants = []struct {
	name   string
	values []string
	want   []string
	keep   bool
}{
	{name: "agents", values: []string{backend}, want: agentObjects, keep: true},
	{name: "gateway", values: []string{backend, `gateway={"enabled":true,"replicas":3}`}, want: gatewayObjects, keep: true},
	{name: "console", values: []string{`gateway={"enabled":true,"console":{"enabled":true}}`}, want: gatewayObjects, keep: true},
	{
		name: "everything", keep: true, want: append(slices.Clone(gatewayObjects), "PodMonitor hotprofile"),
		values: []string{
			backend, `otlp.insecure=true`, `image={"tag":"1","pullSecrets":[{"name":"registry"}]}`,
			`policies={"enabled":false,"cpuThreshold":72.5,"duration":"1m30s","cooldown":"1h"}`,
			`agent={"config":{"processors":{"cpu_trigger":{"cooldown_by":"service"}}},"memoryMiB":700,"requests":{"cpu":0.1},"extraCapabilities":["SYS_ADMIN"]}`,
			`agent.seccompProfile={"type":"Localhost","localhostProfile":"perf.json"}`, `agent.mountPropagation="None"`, `agent.maxUnavailable=1`,
			`agent.extraEnv=[{"name":"HOTPROFILE_INLINE_ATTRIBUTES","value":"false"}]`, `agent.extraVolumes=[{"name":"files","emptyDir":{}}]`,
			`agent.extraVolumeMounts=[{"name":"files","mountPath":"/profiles"}]`, `agent.nodeSelector={"pool":"web"}`, `agent.priorityClassName="high"`,
			`agent.podAnnotations={"a":"b"}`, `agent.podLabels={"c":"d"}`, `agent.affinity={"nodeAffinity":{}}`,
			`gateway={"enabled":true,"config":{"exporters":{"otlp_grpc":{"timeout":"9s"}}},"tolerations":[{"key":"web"}],"extraEnv":[{"name":"A","value":"b"}]}`,
			`gateway.console={"enabled":true,"authSecret":"users","allowedHosts":["console.example"],"existingClaim":"store"}`,
			`serviceAccount={"name":"","annotations":{"e":"f"}}`, `podMonitor={"enabled":true,"labels":{"g":"h"}}`,
		},
	},
	{name: "on the host's network", values: []string{backend, `agent.hostNetwork=true`, `gateway.enabled=true`}, want: gatewayObjects},
	{name: "rights of your own", values: []string{backend, `serviceAccount={"create":false,"name":"mine"}`, `rbac.create=false`}, want: agentObjects[3:]},
	{name: "without a network policy", values: []string{backend, `gateway={"enabled":true,"networkPolicy":false}`}, want: gatewayObjects[:8]},
}

func TestVariantsAreOfTheAPIsTypes(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			out, err := helm(t, arguments("lint", v.values...)...)
			require.NoError(t, err, out)
			require.NotContains(t, out, "WARNING")
			objects := documents(t, v.values...)
			var names []string
			for name := range objects {
				names = append(names, name)
			}
			require.ElementsMatch(t, v.want, names)
			ds := objects["DaemonSet hotprofile-agent"].(*appsv1.DaemonSet)
			for label, value := range ds.Spec.Selector.MatchLabels {
				require.Equal(t, value, ds.Spec.Template.Labels[label])
			}
			if service, ok := objects["Service hotprofile-gateway"].(*corev1.Service); ok {
				gateway := objects["Deployment hotprofile-gateway"].(*appsv1.Deployment)
				for label, value := range service.Spec.Selector {
					require.Equal(t, value, gateway.Spec.Template.Labels[label])
					require.Equal(t, value, gateway.Spec.Selector.MatchLabels[label])
				}
			}
			if v.keep {
				file := filepath.Join("testdata", v.name+".yaml")
				rendered, err := helm(t, arguments("template", v.values...)...)
				require.NoError(t, err)
				if *update {
					require.NoError(t, os.WriteFile(file, []byte(rendered), 0o644))
				}
				require.Equal(t, read(t, file), rendered, "run make chart CHART_FLAGS=-update")
			}
		})
	}
}

func TestAFieldThatTheAPIDoesNotHaveIsFound(t *testing.T) {
	_, err := decode(strings.Replace(read(t, "testdata/agents.yaml"), "hostPID: true", "hostPid: true", 1))
	require.ErrorContains(t, err, "hostPid")
}

// TestRights checks that the agents have exactly the rights that docs/kubernetes.md and
// docs/security.md list.
func TestRights(t *testing.T) {
	for _, v := range variants {
		objects := documents(t, v.values...)
		pod := objects["DaemonSet hotprofile-agent"].(*appsv1.DaemonSet).Spec.Template.Spec
		require.True(t, pod.HostPID)
		require.False(t, pod.HostIPC)
		s := pod.Containers[0].SecurityContext
		require.Equal(t, []corev1.Capability{"ALL"}, s.Capabilities.Drop)
		require.Equal(t, []corev1.Capability{"PERFMON", "SYS_PTRACE", "DAC_READ_SEARCH", "SYSLOG"}, s.Capabilities.Add[:4])
		require.False(t, *s.Privileged || *s.AllowPrivilegeEscalation)
		require.True(t, *s.ReadOnlyRootFilesystem)
		require.NotNil(t, s.SeccompProfile)
		for _, m := range pod.Containers[0].VolumeMounts {
			require.True(t, m.ReadOnly || m.Name == "files", m.Name)
		}
		if role, ok := objects["ClusterRole hotprofile"].(*rbacv1.ClusterRole); ok {
			for _, rule := range role.Rules {
				require.Equal(t, []string{"get", "list", "watch"}, rule.Verbs, "the collector changes nothing")
			}
			require.Equal(t, pod.ServiceAccountName, objects["ClusterRoleBinding hotprofile"].(*rbacv1.ClusterRoleBinding).Subjects[0].Name)
			require.Contains(t, objects, "ServiceAccount "+pod.ServiceAccountName)
		}
		if gateway, ok := objects["Deployment hotprofile-gateway"].(*appsv1.Deployment); ok {
			pod := gateway.Spec.Template.Spec
			require.False(t, *pod.AutomountServiceAccountToken)
			require.True(t, *pod.SecurityContext.RunAsNonRoot)
			require.Empty(t, pod.Containers[0].SecurityContext.Capabilities.Add)
		}
	}
}

// TestEnvironmentIsWhatTheConfigurationReads checks that the chart sets each variable
// that a configuration reads without a default. The chart must not set a HOTPROFILE_
// variable that the configuration does not read.
func TestEnvironmentIsWhatTheConfigurationReads(t *testing.T) {
	objects := documents(t, backend, `gateway.enabled=true`)
	for config, pod := range map[string]corev1.PodSpec{
		"kubernetes": objects["DaemonSet hotprofile-agent"].(*appsv1.DaemonSet).Spec.Template.Spec,
		"gateway":    objects["Deployment hotprofile-gateway"].(*appsv1.Deployment).Spec.Template.Spec,
	} {
		text, set := read(t, root+"config/"+config+".yaml"), map[string]bool{}
		for _, e := range pod.Containers[0].Env {
			set[e.Name] = true
			if strings.HasPrefix(e.Name, "HOTPROFILE_") {
				require.Contains(t, text, "${env:"+e.Name, "%s is set, and nothing reads it", e.Name)
			}
		}
		for _, m := range regexp.MustCompile(`\$\{env:(\w+)(:-)?`).FindAllStringSubmatch(text, -1) {
			require.True(t, set[m[1]] || m[2] != "", "nothing sets %s", m[1])
		}
		require.True(t, config == "gateway" || set["K8S_NODE_NAME"])
	}
}

// TestMemoryFollowsTheLimit checks that a limit of 512 MiB yields the bounds of
// config/kubernetes.yaml.
func TestMemoryFollowsTheLimit(t *testing.T) {
	require.Contains(t, read(t, root+"config/kubernetes.yaml"), "limit_mib: 384\n    spike_limit_mib: 96\n")
	config := documents(t, backend)["ConfigMap hotprofile-agent"].(*corev1.ConfigMap).Data["config.yaml"]
	require.Contains(t, config, "limit_mib: 384\n    spike_limit_mib: 96\n")
}

func TestValuesOfTheOperatorAreMergedLast(t *testing.T) {
	objects := documents(t, backend,
		`agent.config={"processors":{"cpu_trigger":{"cooldown_by":"service"},"memory_limiter":{"limit_mib":300}}}`,
		`gateway={"enabled":true,"config":{"exporters":{"otlp_grpc":{"timeout":"9s"}}}}`)
	agent := objects["ConfigMap hotprofile-agent"].(*corev1.ConfigMap).Data["config.yaml"]
	require.Contains(t, agent, "cooldown_by: service")
	require.Contains(t, agent, "limit_mib: 300")
	require.Contains(t, agent, "name: throttled", "the other keys of cpu_trigger stay")
	require.Contains(t, objects["ConfigMap hotprofile-gateway"].(*corev1.ConfigMap).Data["config.yaml"], "timeout: 9s")
}

func TestWrongValuesAreRefused(t *testing.T) {
	for value, want := range map[string]string{
		``:                                           "otlp.endpoint is empty: set it to your backend's host:port",
		`otlp.endpoint="backend"`:                    "'/otlp/endpoint': 'backend' does not match pattern",
		`otlp.endpiont="backend:4317"`:               "additional properties 'endpiont' not allowed",
		`policies.cpuThreshold="much"`:               "'/policies/cpuThreshold': got string, want number",
		`policies.cpuThreshold=0`:                    "'/policies/cpuThreshold': exclusiveMinimum: got 0, want 0",
		`policies.cooldown="4"`:                      "'/policies/cooldown': '4' does not match pattern",
		`policies.duration=30`:                       "'/policies/duration': got number, want string",
		`agent.memoryMiB=64`:                         "'/agent/memoryMiB': minimum: got 64, want 256",
		`agent.memoryMiB="512Mi"`:                    "'/agent/memoryMiB': got string, want integer",
		`agent.requests={"memory":"1Gi","cpus":"1"}`: "'/agent/requests': additional properties 'cpus' not allowed",
		`agent.limits={"cpu":"1"}`:                   "'/agent': additional properties 'limits' not allowed",
		`agent.extraCapabilities=["CAP_SYS_ADMIN"]`:  "'/agent/extraCapabilities/0'",
		`agent.seccompProfile={"type":"unconfined"}`: "'/agent/seccompProfile/type': value must be one of 'Unconfined', 'RuntimeDefault', 'Localhost'",
		`agent.mountPropagation="Bidirectional"`:     "'/agent/mountPropagation': value must be one of 'None', 'HostToContainer'",
		`agent.maxUnavailable="some"`:                "'/agent/maxUnavailable': 'some' does not match pattern",
		`agent.privileged=true`:                      "'/agent': additional properties 'privileged' not allowed",
		`image.repository="registry/otelcol:1"`:      "'/image/repository'",
		`gateway.replicas=0`:                         "'/gateway/replicas': minimum: got 0, want 1",
		`gateway={"replicas":2,"enabled":true,"console":{"enabled":true}}`:                 "gateway.replicas must be 1 with gateway.console.enabled: each console would show only the share",
		`gateway.console.enabled=true`:                                                     "gateway.console.enabled needs gateway.enabled",
		`gateway={"enabled":true,"console":{"enabled":true,"allowedHosts":["a.example"]}}`: "gateway.console.allowedHosts needs gateway.console.authSecret",
	} {
		t.Run(value, func(t *testing.T) {
			values := []string{backend, value}
			if value == "" {
				values = nil
			}
			_, err := helm(t, arguments("template", values...)...)
			require.ErrorContains(t, err, want)
		})
	}
}

func TestVersionsAgree(t *testing.T) {
	version := regexp.MustCompile(`(?m)^  version: (\S+)$`).FindStringSubmatch(read(t, root+"builder-config.yaml"))
	require.Len(t, version, 2)
	require.Contains(t, read(t, chart+"/Chart.yaml"), "\nversion: "+version[1]+"\nappVersion: "+version[1]+"\n")
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}
