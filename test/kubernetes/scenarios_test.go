// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

// values shortens the default times of the chart. Every agent exports to the gateway and
// also writes files on its node.
const values = `
image: {tag: test}
otlp: {endpoint: "192.168.77.1:4317", insecure: true}
policies: {duration: 12s, cooldown: 10m}
agent:
  extraVolumes: [{name: files, hostPath: {path: %[1]s/profiles, type: DirectoryOrCreate}}]
  extraVolumeMounts: [{name: files, mountPath: /profiles}]
  config:
    receivers: {cpu_profiler: {export_interval: 1s}}
    processors:
      cpu_trigger:
        evaluation_interval: 1s
        min_age: 0s
        pre_trigger: 2s
        cooldown_by: service
        policies:
          - name: cpu
            match: {k8s.namespace.name: default}
            any_of: [{monitor: cpu_utilization, threshold: "${env:HOTPROFILE_CPU_THRESHOLD}", average_over: 5s}]
            duration: ${env:HOTPROFILE_DURATION}
            cooldown: ${env:HOTPROFILE_COOLDOWN}
    exporters: {pprof: {directory: /profiles}}
    service: {pipelines: {profiles: {exporters: [otlp_grpc, pprof]}}}
gateway:
  enabled: true
  console: {enabled: true}
  config: {service: {pipelines: {logs: {exporters: [console, otlp_grpc]}}}}
`

// peer is the configuration of the backend. The backend is a collector that
// writes all requests to a file.
const peer = `
receivers: {otlp: {protocols: {grpc: {endpoint: "192.168.77.1:4317"}}}}
exporters: {file: {path: %[1]q, flush_interval: 100ms}}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    profiles: {receivers: [otlp], exporters: [file]}
    logs: {receivers: [otlp], exporters: [file]}
    metrics: {receivers: [otlp], exporters: [file]}
`

const hotprofile = "hotprofile"

func TestCluster(t *testing.T) {
	c := startCluster(t)
	c.start(filepath.Join(c.bin, "otelcol-hotprofile"), "--config", c.write("peer.yaml", fmt.Sprintf(peer, filepath.Join(c.dir, "peer.json"))))
	c.write("values.yaml", fmt.Sprintf(values, c.dir))
	for name, level := range map[string]string{hotprofile: "privileged", "baseline": "baseline", "norights": "privileged", "taken": "privileged"} {
		_, err := c.client.CoreV1().Namespaces().Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": level},
		}}, metav1.CreateOptions{})
		c.check(err)
	}
	out, err := c.helm(hotprofile, "install", "--wait", "--timeout", "3m")
	c.check(err, out)
	c.Log(out)
	c.follow()
	defer func() {
		if t.Failed() {
			t.Log(strings.Join(c.logs.find(""), "\n"))
		}
	}()
	c.within(time.Minute, "agents sample", func() bool { return len(c.logs.find("sampling started")) > 0 })
	t.Log(c.logs.find("sampling started")[0])

	for _, scenario := range []struct {
		name string
		run  func(*cluster)
	}{
		{"three replicas of a service turn hot", (*cluster).replicas},
		{"a container restarts", (*cluster).restart},
		{"a pod is evicted while its gate is open", (*cluster).evict},
		{"a container is killed for its memory", (*cluster).outOfMemory},
		{"the DaemonSet is rolled while a gate is open", (*cluster).roll},
		{"the API server is away for a minute", (*cluster).withoutAPIServer},
		{"a right is missing", (*cluster).missingRight},
		{"a namespace enforces pod security baseline", (*cluster).baseline},
		{"the port of the health check is in use", (*cluster).portInUse},
	} {
		t.Run(scenario.name, func(t *testing.T) {
			of := *c
			of.T = t
			scenario.run(&of)
		})
	}
}

func (c *cluster) helm(namespace, command string, args ...string) (string, error) {
	return c.run(filepath.Join(c.bin, "helm"), append([]string{command, "hotprofile", "../../deploy/helm/hotprofile",
		"--namespace", namespace, "--values", filepath.Join(c.dir, "values.yaml")}, args...)...)
}

// deploy creates a Deployment of the load. Each pod has a CPU limit of a fifth of a core.
func (c *cluster) deploy(name string, replicas int32, command ...string) {
	c.Helper()
	labels := map[string]string{"app": name}
	grace := int64(1)
	_, err := c.client.AppsV1().Deployments("default").Create(context.Background(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{
					Name: "main", Image: loadImage, Command: command, ImagePullPolicy: corev1.PullNever,
					Resources: corev1.ResourceRequirements{
						Limits:   corev1.ResourceList{"cpu": resource.MustParse("200m"), "memory": resource.MustParse("64Mi")},
						Requests: corev1.ResourceList{"cpu": resource.MustParse("20m")},
					},
				}}},
			},
		},
	}, metav1.CreateOptions{})
	c.check(err)
}

func (c *cluster) remove(name string) {
	c.Helper()
	now := int64(0)
	c.check(c.client.AppsV1().Deployments("default").Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
}

// pods returns the pods of a Deployment in the namespace default.
func (c *cluster) pods(app string) []corev1.Pod {
	pods, err := c.client.CoreV1().Pods("default").List(context.Background(), metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		return nil
	}
	return pods.Items
}

// peerLines returns the lines of the peer's file that contain all texts.
// Each line is one request in JSON.
func (c *cluster) peerLines(texts ...string) (found []string) {
	content, err := os.ReadFile(filepath.Join(c.dir, "peer.json"))
	c.check(err)
lines:
	for line := range strings.Lines(string(content)) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue lines
			}
		}
		found = append(found, line)
	}
	return found
}

// field returns the value of a field in a log line.
func field(line, name string) string {
	m := regexp.MustCompile(fmt.Sprintf(`%q: ?"?([^",}]*)`, name)).FindStringSubmatch(line)
	if m == nil {
		return ""
	}
	return m[1]
}

// opened waits until a gate of a pod of the Deployment opens. It returns the log line.
func (c *cluster) opened(app string) string {
	c.Helper()
	var lines []string
	c.within(90*time.Second, "gate of "+app+" opened", func() bool {
		lines = c.logs.find("gate opened", `"`+app)
		return len(lines) > 0
	})
	return lines[len(lines)-1]
}

func (c *cluster) replicas() {
	c.deploy("shop", 3, "/load")
	line := c.opened("shop")
	c.Log(line)
	c.within(time.Minute, "two replicas are refused by the cooldown of their service", func() bool {
		// One request may contain both events.
		return strings.Count(strings.Join(c.peerLines("hotprofile.gate.not_opened", `"shop"`), ""), "cooldown of its service") >= 2
	})
	c.within(time.Minute, "gate of shop closed", func() bool { return len(c.logs.find("gate closed", `"shop`)) > 0 })
	c.Log(c.logs.find("gate closed", `"shop`)[0])
	if n := len(c.logs.find("gate opened", `"shop`)); n != 1 {
		c.Errorf("%d gates of shop opened, want 1", n)
	}
	id, pod := field(line, "trigger_id"), ""
	for _, p := range c.pods("shop") {
		if strings.Contains(line, p.Name) {
			pod = p.Name
		}
	}
	names := []string{`"k8s.pod.name","value":{"stringValue":"` + pod + `"`, `"k8s.namespace.name","value":{"stringValue":"default"`, `"k8s.container.name","value":{"stringValue":"main"`, `"k8s.deployment.name","value":{"stringValue":"shop"`}
	if pod == "" || id == "" {
		c.Fatalf("no pod or no id of shop in the log line: %s", line)
	}
	for _, of := range []string{"hotprofile.gate.opened", "hotprofile.gate.closed"} {
		c.within(30*time.Second, of+" at the peer, with pod, namespace, container and deployment", func() bool { return len(c.peerLines(append(names, of)...)) > 0 })
	}
	c.within(30*time.Second, "profiles at the peer, with pod, namespace, container and deployment", func() bool {
		r, n := c.openingAtThePeer(id)
		return n > 0 && r["k8s.pod.name"] == pod && r["k8s.namespace.name"] == "default" && r["k8s.container.name"] == "main" && r["k8s.deployment.name"] == "shop"
	})
	c.samplesArrived(id, c.logs.find("gate closed", id)[0])
	c.within(30*time.Second, "a file of the opening on the node", func() bool {
		files, _ := filepath.Glob(filepath.Join(c.dir, "profiles", "*shop*"))
		return len(files) > 0
	})
	c.console(id, pod, "shop", "burnThreeParts")
}

// console requests pages of the gateway through a forwarded port, as
// described in the notes of the chart.
func (c *cluster) console(id string, texts ...string) {
	pods, err := c.client.CoreV1().Pods(hotprofile).List(context.Background(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=gateway"})
	c.check(err)
	transport, upgrader, err := spdy.RoundTripperFor(c.config)
	c.check(err)
	url := c.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(hotprofile).Name(pods.Items[0].Name).SubResource("portforward").URL()
	stop, ready := make(chan struct{}), make(chan struct{})
	defer close(stop)
	forwarder, err := portforward.New(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url), []string{"4042"}, stop, ready, io.Discard, io.Discard)
	c.check(err)
	go func() { _ = forwarder.ForwardPorts() }()
	<-ready
	c.within(time.Minute, "the console has the opening with its names", func() bool {
		answer, err := http.Get("http://localhost:4042/openings/" + id)
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		page, err := io.ReadAll(answer.Body)
		for _, text := range texts {
			if !strings.Contains(string(page), text) {
				return false
			}
		}
		return err == nil && answer.StatusCode == http.StatusOK
	})
}

func (c *cluster) restart() {
	pod := c.pods("shop")[0]
	id := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	out, err := c.run("ctr", "--address", filepath.Join(c.dir, "containerd.sock"), "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", id)
	c.check(err, out)
	c.within(time.Minute, "the container was restarted", func() bool {
		for _, p := range c.pods("shop") {
			s := p.Status.ContainerStatuses
			if p.Name == pod.Name && len(s) > 0 && s[0].RestartCount == 1 && s[0].State.Running != nil {
				id = strings.TrimPrefix(s[0].ContainerID, "containerd://")
				return true
			}
		}
		return false
	})
	c.within(time.Minute, "the new container is refused by the cooldown of its service", func() bool {
		return len(c.peerLines("hotprofile.gate.not_opened", id, pod.Name, "cooldown of its service")) > 0
	})
	c.remove("shop")
}

func (c *cluster) evict() {
	c.deploy("evicted", 1, "/load")
	line := c.opened("evicted")
	pod := c.pods("evicted")[0]
	now := int64(0)
	c.check(c.client.CoreV1().Pods("default").EvictV1(context.Background(), &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: "default"}, DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: &now},
	}))
	c.gone("evicted", line)
	c.remove("evicted")
}

// gone checks that a gate has closed because its unit no longer exists. It also checks
// that the samples and the names have arrived at the peer.
func (c *cluster) gone(app, opened string) {
	c.Helper()
	id := field(opened, "trigger_id")
	var closed []string
	c.within(time.Minute, "gate of "+app+" closed: unit gone", func() bool {
		closed = c.logs.find("gate closed", id, "unit gone")
		return len(closed) > 0
	})
	c.Log(closed[0])
	c.samplesArrived(id, closed[0])
	c.within(30*time.Second, "closed event with the deployment", func() bool {
		return len(c.peerLines("hotprofile.gate.closed", "unit gone", id, `"k8s.deployment.name","value":{"stringValue":"`+app+`"`)) > 0
	})
}

// samplesArrived checks that the peer has received at least as many samples as the agent
// has counted for an opening.
func (c *cluster) samplesArrived(id, closed string) {
	c.Helper()
	var counted int
	_, err := fmt.Sscan(field(closed, "samples"), &counted)
	c.check(err, closed)
	if counted == 0 {
		c.Errorf("no samples: %s", closed)
	}
	arrived := 0
	c.within(30*time.Second, fmt.Sprintf("at least %d samples of %s at the peer", counted, id), func() bool {
		_, arrived = c.openingAtThePeer(id)
		return arrived >= counted
	})
	c.Logf("%d samples were counted when the gate closed, %d are at the peer", counted, arrived)
}

type attribute struct {
	Key         string
	KeyStrindex int
	Value       struct {
		StringValue         string
		StringValueStrindex int
	}
}

// request is an OTLP request of profiles in JSON. It contains only
// the fields that the test reads.
type request struct {
	Dictionary struct {
		StringTable    []string
		AttributeTable []attribute
	}
	ResourceProfiles []struct {
		Resource      struct{ Attributes []attribute }
		ScopeProfiles []struct {
			Profiles []struct {
				AttributeIndices []int
				Samples          []struct {
					Values, TimestampsUnixNano []json.RawMessage
				}
			}
		}
	}
}

// resolve returns the key and the value of an attribute. Both may be references.
func (r *request) resolve(a attribute) (key, value string) {
	key, value = a.Key, a.Value.StringValue
	if a.KeyStrindex > 0 {
		key = r.Dictionary.StringTable[a.KeyStrindex]
	}
	if a.Value.StringValueStrindex > 0 {
		value = r.Dictionary.StringTable[a.Value.StringValueStrindex]
	}
	return key, value
}

// openingAtThePeer returns the resource attributes and the number of samples
// of all profiles of an opening.
func (c *cluster) openingAtThePeer(id string) (resource map[string]string, samples int) {
	resource = map[string]string{}
	for _, line := range c.peerLines("resourceProfiles", id) {
		var r request
		if json.Unmarshal([]byte(line), &r) != nil {
			continue // the peer is still writing this line
		}
		for _, of := range r.ResourceProfiles {
			for _, s := range of.ScopeProfiles {
				for _, p := range s.Profiles {
					if !slices.ContainsFunc(p.AttributeIndices, func(i int) bool { _, value := r.resolve(r.Dictionary.AttributeTable[i]); return value == id }) {
						continue
					}
					for _, a := range of.Resource.Attributes {
						key, value := r.resolve(a)
						resource[key] = value
					}
					for _, sample := range p.Samples {
						samples += max(len(sample.Values), len(sample.TimestampsUnixNano))
					}
				}
			}
		}
	}
	return resource, samples
}

func (c *cluster) outOfMemory() {
	c.deploy("eater", 1, "/pod", "-eat-after", "12s")
	line := c.opened("eater")
	c.within(time.Minute, "the kernel killed the container", func() bool {
		for _, p := range c.pods("eater") {
			for _, s := range p.Status.ContainerStatuses {
				for _, state := range []corev1.ContainerState{s.State, s.LastTerminationState} {
					if state.Terminated != nil && state.Terminated.Reason == "OOMKilled" {
						return true
					}
				}
			}
		}
		return false
	})
	c.gone("eater", line)
	c.remove("eater")
}

func (c *cluster) roll() {
	c.deploy("rolled", 1, "/load")
	line := c.opened("rolled")
	id := field(line, "trigger_id")
	out, err := c.helm(hotprofile, "upgrade", "--wait", "--timeout", "3m", "--set", "agent.podAnnotations.rolled=yes")
	c.check(err, out)
	var closed []string
	c.within(time.Minute, "gate of rolled closed: shutdown", func() bool {
		closed = c.logs.find("gate closed", id, "shutdown")
		return len(closed) > 0
	})
	c.Log(closed[0])
	c.samplesArrived(id, closed[0])
	if lost := append(c.logs.find("Dropping data"), c.logs.find("THIS WILL RESULT IN LOSS")...); len(lost) > 0 {
		c.Errorf("lost: %s", lost)
	}
	c.within(90*time.Second, "the new agent opens the gate: cooldowns are not stored", func() bool { return len(c.logs.find("gate opened", `"rolled`)) > 1 })
	c.remove("rolled")
}

func (c *cluster) withoutAPIServer() {
	c.deploy("later", 1, "/load", "-idle", "40s")
	c.within(time.Minute, "the pod of later runs", func() bool {
		pods := c.pods("later")
		return len(pods) == 1 && pods[0].Status.Phase == corev1.PodRunning
	})
	restart := c.stopAPIServer()
	begin := time.Now()
	line := c.opened("later")
	c.Log(line)
	if !strings.Contains(line, "default") || time.Since(begin) > time.Minute {
		c.Errorf("opened %v after the API server ended: %s", time.Since(begin), line)
	}
	time.Sleep(time.Minute - time.Since(begin))
	restart()
	c.deploy("afterwards", 1, "/load")
	c.within(2*time.Minute, "the pod of afterwards runs", func() bool {
		pods := c.pods("afterwards")
		return len(pods) == 1 && pods[0].Status.Phase == corev1.PodRunning
	})
	c.Log(c.opened("afterwards"))
	c.remove("later")
	c.remove("afterwards")
}

// agent holds the values of a second release, which has only an agent and no gateway.
var agent = []string{"--set", "gateway.enabled=false", "--set", "gateway.console.enabled=false", "--set", "agent.hostNetwork=false"}

func (c *cluster) missingRight() {
	out, err := c.helm("norights", "install", append(agent, "--set", "rbac.create=false", "--set", "fullnameOverride=norights")...)
	c.check(err, out)
	c.within(time.Minute, "the log names the missing right", func() bool { return len(c.logs.find("norights", "is forbidden")) > 0 })
	c.Log(c.logs.find("norights", "is forbidden")[0])
	c.uninstall("norights")
}

func (c *cluster) uninstall(namespace string) {
	out, err := c.run(filepath.Join(c.bin, "helm"), "uninstall", "hotprofile", "--namespace", namespace, "--wait")
	c.check(err, out)
}

func (c *cluster) baseline() {
	out, err := c.helm("baseline", "install", append(agent, "--set", "fullnameOverride=baseline")...)
	if err == nil || !strings.Contains(out, `the namespace baseline enforces pod security "baseline"`) {
		c.Fatalf("helm install: %v: %s", err, out)
	}
	c.Log(out)
	// A label that is set later affects only new pods.
	enforce := func(level string) {
		_, err := c.client.CoreV1().Namespaces().Patch(context.Background(), "baseline", types.MergePatchType,
			[]byte(`{"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "`+level+`"}}}`), metav1.PatchOptions{})
		c.check(err)
	}
	enforce("privileged")
	out, err = c.helm("baseline", "install", append(agent, "--set", "fullnameOverride=baseline", "--wait")...)
	c.check(err, out)
	enforce("baseline")
	c.check(c.client.CoreV1().Pods("baseline").DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	var said string
	c.within(time.Minute, "the event of the DaemonSet names pod security", func() bool {
		events, err := c.client.CoreV1().Events("baseline").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return false
		}
		for _, e := range events.Items {
			if e.Reason == "FailedCreate" && strings.Contains(e.Message, "violates PodSecurity") {
				said = e.Message
			}
		}
		return said != ""
	})
	c.Log(said)
	c.uninstall("baseline")
}

func (c *cluster) portInUse() {
	l, err := net.Listen("tcp", "127.0.0.1:13133")
	c.check(err)
	defer l.Close()
	out, err := c.helm("taken", "install", append(agent[:4:4], "--set", "agent.hostNetwork=true", "--set", "fullnameOverride=taken")...)
	c.check(err, out)
	c.within(time.Minute, "the log names the port", func() bool { return len(c.logs.find("taken", "127.0.0.1:13133", "address already in use")) > 0 })
	c.Log(c.logs.find("taken", "127.0.0.1:13133", "address already in use")[0])
	c.within(time.Minute, "the status of the pod has the error", func() bool {
		pods, err := c.client.CoreV1().Pods("taken").List(context.Background(), metav1.ListOptions{})
		return err == nil && len(pods.Items) == 1 && len(pods.Items[0].Status.ContainerStatuses) == 1 && pods.Items[0].Status.ContainerStatuses[0].RestartCount > 0
	})
	c.uninstall("taken")
}
