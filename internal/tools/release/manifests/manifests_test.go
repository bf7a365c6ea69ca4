// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package manifests tests that the manifests of deploy/kubernetes decode strictly
// into the types of the Kubernetes API, and agree with the configuration and docs.
package manifests

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

const manifests = "../../../../deploy/kubernetes/"

// decode decodes a manifest; a field that the API does not have is an error.
func decode[T any](t *testing.T, document string) *T {
	t.Helper()
	object := new(T)
	require.NoError(t, strictly(document, object))
	return object
}

// strictly decodes like an API server with strict field validation.
func strictly(document string, object any) error {
	encoded, err := yaml.YAMLToJSONStrict([]byte(document))
	if err != nil {
		return err
	}
	unknown, err := json.UnmarshalStrict(encoded, object)
	return errors.Join(append(unknown, err)...)
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(content)
}

func daemonSet(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	return decode[appsv1.DaemonSet](t, read(t, manifests+"daemonset.yaml"))
}

func TestManifestsAreOfTheAPIsTypes(t *testing.T) {
	ds := daemonSet(t)
	require.Equal(t, "apps/v1 DaemonSet", ds.APIVersion+" "+ds.Kind)
	require.Equal(t, ds.Spec.Selector.MatchLabels, ds.Spec.Template.Labels)
	namespace := decode[corev1.Namespace](t, read(t, manifests+"namespace.yaml"))
	require.Equal(t, namespace.Name, ds.Namespace)

	parts := strings.Split(read(t, manifests+"rbac.yaml"), "\n---\n")
	require.Len(t, parts, 3)
	account := decode[corev1.ServiceAccount](t, parts[0])
	role := decode[rbacv1.ClusterRole](t, parts[1])
	binding := decode[rbacv1.ClusterRoleBinding](t, parts[2])
	require.Equal(t, ds.Spec.Template.Spec.ServiceAccountName, account.Name)
	require.Equal(t, role.Name, binding.RoleRef.Name)
	require.Equal(t, []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: ds.Namespace}}, binding.Subjects)
	for _, rule := range role.Rules {
		require.Equal(t, []string{"get", "list", "watch"}, rule.Verbs, "the collector changes nothing")
	}
}

func TestAFieldThatTheAPIDoesNotHaveIsFound(t *testing.T) {
	broken := strings.Replace(read(t, manifests+"daemonset.yaml"), "hostPID: true", "hostPid: true", 1)
	require.Error(t, strictly(broken, new(appsv1.DaemonSet)))
}

// The container test of test/e2e runs the image with this security context. Here it
// is compared with the documentation.
func TestSecurityContext(t *testing.T) {
	pod := daemonSet(t).Spec.Template.Spec
	require.True(t, pod.HostPID)
	require.False(t, pod.HostNetwork || pod.HostIPC)
	require.Len(t, pod.Containers, 1)
	s := pod.Containers[0].SecurityContext
	require.Equal(t, []corev1.Capability{"ALL"}, s.Capabilities.Drop)
	require.Equal(t, []corev1.Capability{"PERFMON", "SYS_PTRACE", "DAC_READ_SEARCH", "SYSLOG"}, s.Capabilities.Add)
	require.False(t, *s.Privileged || *s.AllowPrivilegeEscalation)
	require.True(t, *s.ReadOnlyRootFilesystem)
	for _, m := range pod.Containers[0].VolumeMounts {
		require.True(t, m.ReadOnly, m.Name)
	}
}

// The manifest must set each variable that the configuration reads without a
// default, and no HOTPROFILE_ variable that it does not read.
func TestEnvironmentIsWhatTheConfigurationReads(t *testing.T) {
	config := read(t, "../../../../config/kubernetes.yaml")
	set := map[string]bool{}
	for _, e := range daemonSet(t).Spec.Template.Spec.Containers[0].Env {
		set[e.Name] = true
		if strings.HasPrefix(e.Name, "HOTPROFILE_") {
			require.Contains(t, config, "${env:"+e.Name, "%s is set, and nothing reads it", e.Name)
		}
	}
	for _, m := range regexp.MustCompile(`\$\{env:(\w+)(:-)?`).FindAllStringSubmatch(config, -1) {
		require.True(t, set[m[1]] || m[2] != "", "nothing sets %s", m[1])
	}
	require.True(t, set["K8S_NODE_NAME"])
	require.Contains(t, config, "node_from_env_var: K8S_NODE_NAME")
}

func TestVersionsAgree(t *testing.T) {
	version := regexp.MustCompile(`(?m)^  version: (\S+)$`)
	want := version.FindStringSubmatch(read(t, "../../../../builder-config.yaml"))
	require.NotNil(t, want)
	require.Equal(t, want, version.FindStringSubmatch(read(t, "../../../../builder-config.ebpf.yaml")))
	require.Contains(t, read(t, manifests+"kustomization.yaml"), "newTag: "+want[1]+"\n")
}

func TestTheEBPFCollectorHasTheSameVersions(t *testing.T) {
	module := regexp.MustCompile(`gomod: (\S+) (\S+)`)
	versions := map[string]string{}
	for _, m := range module.FindAllStringSubmatch(read(t, "../../../../builder-config.yaml"), -1) {
		versions[m[1]] = m[2]
	}
	for _, m := range module.FindAllStringSubmatch(read(t, "../../../../builder-config.ebpf.yaml"), -1) {
		if m[1] != "go.opentelemetry.io/ebpf-profiler" {
			require.NotEmpty(t, m[2])
			require.Equal(t, versions[m[1]], m[2], m[1])
		}
	}
}
