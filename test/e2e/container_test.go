// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/hotprofile/hotprofile/test/conformancetest"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// rendered contains the manifests of the chart for
// agents. `make chart` keeps it up to date.
const rendered = "../../internal/tools/chart/testdata/agents.yaml"

// daemonSet contains the parts of the chart's DaemonSet that define how the collector's
// container runs. The tests run the container with exactly these settings.
type daemonSet struct {
	Kind string `yaml:"kind"`
	Spec struct {
		Template struct {
			Spec struct {
				HostPID    bool `yaml:"hostPID"`
				Containers []struct {
					SecurityContext struct {
						RunAsUser                *int  `yaml:"runAsUser"`
						RunAsGroup               *int  `yaml:"runAsGroup"`
						Privileged               *bool `yaml:"privileged"`
						AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
						ReadOnlyRootFilesystem   *bool `yaml:"readOnlyRootFilesystem"`
						Capabilities             struct {
							Drop []string `yaml:"drop"`
							Add  []string `yaml:"add"`
						} `yaml:"capabilities"`
						SeccompProfile map[string]string `yaml:"seccompProfile"`
					} `yaml:"securityContext"`
					Resources struct {
						Limits map[string]string `yaml:"limits"`
					} `yaml:"resources"`
					VolumeMounts []struct {
						Name             string `yaml:"name"`
						MountPath        string `yaml:"mountPath"`
						ReadOnly         bool   `yaml:"readOnly"`
						MountPropagation string `yaml:"mountPropagation"`
					} `yaml:"volumeMounts"`
				} `yaml:"containers"`
				Volumes []struct {
					Name     string `yaml:"name"`
					HostPath *struct {
						Path string `yaml:"path"`
					} `yaml:"hostPath"`
				} `yaml:"volumes"`
			} `yaml:"spec"`
		} `yaml:"template"`
	} `yaml:"spec"`
}

// dockerArguments returns the DaemonSet's settings as arguments of docker
// run, without hostPID. It also returns the capabilities to add.
func dockerArguments(t *testing.T) (args, capabilities []string) {
	t.Helper()
	content, err := os.Open(rendered)
	require.NoError(t, err)
	defer content.Close()
	documents := yaml.NewDecoder(content)
	var ds daemonSet
	for ds.Kind != "DaemonSet" {
		ds = daemonSet{}
		require.NoError(t, documents.Decode(&ds))
	}
	pod := ds.Spec.Template.Spec
	require.True(t, pod.HostPID)
	require.Len(t, pod.Containers, 1)
	c := pod.Containers[0]
	s := c.SecurityContext
	require.False(t, *s.Privileged)
	args = append(args, "--user", fmt.Sprintf("%d:%d", *s.RunAsUser, *s.RunAsGroup))
	if *s.ReadOnlyRootFilesystem {
		args = append(args, "--read-only")
	}
	if !*s.AllowPrivilegeEscalation {
		args = append(args, "--security-opt", "no-new-privileges")
	}
	for _, name := range s.Capabilities.Drop {
		args = append(args, "--cap-drop", name)
	}
	switch profile := s.SeccompProfile["type"]; profile {
	case "Unconfined":
		args = append(args, "--security-opt", "seccomp=unconfined")
	case "RuntimeDefault": // Docker's default
	default:
		t.Fatalf("seccomp profile %q is not translated", profile)
	}
	args = append(args, "--memory", strings.TrimSuffix(c.Resources.Limits["memory"], "i"))
	for _, volume := range pod.Volumes {
		for _, m := range c.VolumeMounts {
			if volume.HostPath == nil || m.Name != volume.Name {
				continue
			}
			mount := "type=bind,source=" + volume.HostPath.Path + ",target=" + m.MountPath
			if m.ReadOnly {
				mount += ",readonly"
			}
			// The engine refuses the option if the root of the host is not a
			// shared mount. systemd makes the root a shared mount.
			if m.MountPropagation == "HostToContainer" && sharesMounts(t) {
				mount += ",bind-propagation=rslave"
			}
			args = append(args, "--mount", mount)
		}
	}
	return args, s.Capabilities.Add
}

const containerConfig = `
receivers:
  cpu_profiler: {root_path: %q, frequency: %d, max_overhead: 0, export_interval: 1s}
processors:
  cpu_trigger:
    root_path: %q
    evaluation_interval: 500ms
    min_age: 0
    pre_trigger: 0
    policies:
      - name: cpu
        any_of: [{monitor: cpu_utilization, threshold: 80, average_over: 3s}]
        duration: 5s
        cooldown: 1h
exporters:
  otlp_grpc: {endpoint: "127.0.0.1:%d", tls: {insecure: true}}
service:
  telemetry: {logs: {encoding: json, sampling: {enabled: false}}, metrics: {level: none}}
  pipelines:
    profiles: {receivers: [cpu_profiler], processors: [cpu_trigger], exporters: [otlp_grpc]}
`

// gateTo returns a configuration that gates the whole host and exports to an OTLP server.
func gateTo(w *wire, root string) string {
	return fmt.Sprintf(containerConfig, root, frequency, root, w.port)
}

func TestHotContainer(t *testing.T) {
	t.Parallel()
	e := startEngine(t)
	t.Run("collector on the host", func(t *testing.T) {
		w := startWire(t)
		c := startCollector(t, "collector", gateTo(w, "/"))
		e.checkHotPasses(t, c, w)
	})
	t.Run("collector in a container", func(t *testing.T) {
		w := startWire(t)
		c := e.startCollector(t, gateTo(w, "/host"), "--pid=host")
		e.checkHotPasses(t, c, w)
	})
	t.Run("collector in a container without the host's pids", func(t *testing.T) {
		w := startWire(t)
		c := e.startCollector(t, gateTo(w, "/host"))
		c.wait(startTimeout, "sampling started", func(l logLine) bool {
			return strings.Contains(fmt.Sprint(l), "hostPID")
		})
		lines := 0
		for line := range strings.Lines(c.text()) {
			if strings.Contains(line, "hostPID") {
				lines++
			}
		}
		require.Equal(t, 1, lines, "what is invisible is to be said in one line")
	})
}

// sharesMounts reports whether the root of this host is a shared mount.
func sharesMounts(t *testing.T) bool {
	t.Helper()
	content, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	for line := range strings.Lines(string(content)) {
		if f := strings.Fields(line); len(f) > 6 && f[4] == "/" {
			return strings.HasPrefix(f[6], "shared:")
		}
	}
	return false
}

// checkHotPasses runs a hot container and a cool container. It checks that profiles
// of the hot container arrive and profiles of the cool container do not.
func (e *engine) checkHotPasses(t *testing.T, c *collector, w *wire) {
	t.Helper()
	c.wait(startTimeout, "Everything is ready. Begin running and processing data.", nil)
	cool := e.runLoad(t, coolService, "-duty", "0.05")
	hot := e.runLoad(t, hotService)
	ours := func(l logLine) bool { return l.str("unit") == hot || l.str("unit") == cool }
	opened := c.wait(startTimeout, "gate opened", ours)
	require.Equal(t, hot, opened.str("unit"))
	require.Equal(t, hotService, opened.str("service"))
	c.wait(startTimeout, "gate closed", ours)
	c.stop()

	samples := 0
	for i, batch := range w.received() {
		for _, v := range conformancetest.Check(batch, conformancetest.Options{Triggered: true, References: true}) {
			t.Errorf("request %d on the wire: %v", i, v)
		}
	}
	for _, p := range flatten(w.received()) {
		require.NotEqual(t, coolService, p.service())
		if p.resource["container.id"] != hot {
			continue // another container on this host is hot, too
		}
		require.Equal(t, hot, p.str("hotprofile.unit"))
		require.Equal(t, hotService, p.service())
		n := shares([]profile{p}, "burnThreeParts", "burnOnePart")
		samples += n["burnThreeParts"] + n["burnOnePart"]
	}
	if samples < 1000 {
		t.Errorf("%d samples with the names of the container's functions, want about %.0f a second", samples, cores*frequency)
	}
}

// TestContainerOfShortProcesses runs a container whose processes each live for 20 ms.
// All samples are also exported without a gate. At least 95 % of all samples of the
// container's program must have passed the gate as samples of the container. The number
// of samples must also fit the CPU time that the kernel charged to the container.
func TestContainerOfShortProcesses(t *testing.T) {
	e := startEngine(t)
	gated, all := startWire(t), startWire(t)
	c := startCollector(t, "collector", strings.NewReplacer(
		"exporters:\n", fmt.Sprintf("exporters:\n  otlp_grpc/all: {endpoint: \"127.0.0.1:%d\", tls: {insecure: true}}\n", all.port),
		"pipelines:\n", "pipelines:\n    profiles/all: {receivers: [cpu_profiler], exporters: [otlp_grpc/all]}\n",
	).Replace(gateTo(gated, "/")))
	c.wait(startTimeout, "Everything is ready. Begin running and processing data.", nil)
	hot := e.runLoad(t, hotService, "-process-life", "20ms")
	usage := recordUsage(t, hot)
	isHot := func(l logLine) bool { return l.str("unit") == hot }
	c.wait(startTimeout, "gate opened", isHot)
	c.wait(startTimeout, "gate closed", isHot)
	c.stop()
	readings := usage()

	var first, last time.Time
	matched := 0
	for _, p := range flatten(gated.received()) {
		if p.str("hotprofile.unit") != hot {
			continue
		}
		if first.IsZero() || p.start.Before(first) {
			first = p.start
		}
		if p.end.After(last) {
			last = p.end
		}
		matched += p.events()
	}
	require.NotZero(t, matched, "nothing of the container passed the gate")
	sampled := 0
	for _, p := range flatten(all.received()) {
		// The image's only program has a unique name on the host. The middles of time windows
		// are compared, because the windows of profiles may overlap if samples are merged
		// late.
		middle := p.start.Add(p.end.Sub(p.start) / 2)
		if p.resource["process.executable.name"] == imageProgram && middle.After(first) && middle.Before(last) {
			sampled += p.events()
		}
	}
	used := usedBetween(readings, first, last)
	t.Logf("in %v: %d samples of the container's program, %d of them (%.1f%%) passed as the container's; it used %v of CPU, %.0f sampling periods",
		last.Sub(first), sampled, matched, 100*float64(matched)/float64(sampled), used, used.Seconds()*frequency)
	if float64(matched) < 0.95*float64(sampled) {
		t.Errorf("%d of %d samples of the container's program were matched to it, want at least 95%%", matched, sampled)
	}
	if float64(sampled) < 0.85*used.Seconds()*frequency {
		t.Errorf("%d samples in %v of CPU time at %d Hz", sampled, used, frequency)
	}
}

type usageReading struct {
	at   time.Time
	used time.Duration
}

// recordUsage reads the CPU time of a container's cgroup
// repeatedly. It stops when the returned function is called.
func recordUsage(t *testing.T, id string) func() []usageReading {
	t.Helper()
	var files []string
	for _, pattern := range []string{"/sys/fs/cgroup/cpuacct/docker/%s/cpuacct.usage", "/sys/fs/cgroup/cpu,cpuacct/docker/%s/cpuacct.usage"} {
		if f := fmt.Sprintf(pattern, id); fileExists(f) {
			files = append(files, f)
		}
	}
	var read func() (time.Duration, error)
	if len(files) > 0 {
		read = func() (d time.Duration, err error) {
			content, err := os.ReadFile(files[0])
			if err == nil {
				_, err = fmt.Sscan(string(content), (*int64)(&d))
			}
			return d, err
		}
	} else {
		found, err := filepath.Glob("/sys/fs/cgroup/*/docker-" + id + ".scope/cpu.stat")
		require.NoError(t, err)
		found = append(found, "/sys/fs/cgroup/docker/"+id+"/cpu.stat")
		read = func() (time.Duration, error) {
			content, err := os.ReadFile(found[0])
			var us int64
			if err == nil {
				_, err = fmt.Sscanf(string(content), "usage_usec %d", &us)
			}
			return time.Duration(us) * time.Microsecond, err
		}
	}
	stop, done := make(chan struct{}), make(chan []usageReading)
	go func() {
		var all []usageReading
		for {
			if used, err := read(); err == nil {
				all = append(all, usageReading{time.Now(), used})
			}
			select {
			case <-stop:
				done <- all
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return func() []usageReading { close(stop); return <-done }
}

func fileExists(path string) bool { _, err := os.Stat(path); return err == nil }

// usedBetween returns the CPU time that was used between two
// moments. It interpolates between readings.
func usedBetween(all []usageReading, from, to time.Time) time.Duration {
	at := func(when time.Time) time.Duration {
		for i := 1; i < len(all); i++ {
			a, b := all[i-1], all[i]
			if when.Before(b.at) {
				part := float64(when.Sub(a.at)) / float64(b.at.Sub(a.at))
				return a.used + time.Duration(part*float64(b.used-a.used))
			}
		}
		return all[len(all)-1].used
	}
	return at(to) - at(from)
}

// engine is a Docker engine with the images that the test has built.
type engine struct {
	load, collector string
	arguments       []string // arguments of docker run for the collector
}

func startEngine(t *testing.T) *engine {
	t.Helper()
	if out, err := exec.Command("docker", "info").CombinedOutput(); err != nil {
		hosttest.SkipUnprivileged(t, "no Docker engine answers: %v: %s", err, out)
	}
	e := &engine{load: "hotprofile-e2e-load", collector: "hotprofile-e2e-collector"}
	dir := t.TempDir()
	file := filepath.Join(dir, "Dockerfile")
	require.NoError(t, os.WriteFile(file, []byte("FROM scratch\nCOPY . /\nENTRYPOINT [\"/"+imageProgram+"\"]\n"), 0o644))
	buildImage(t, e.load, file, loadBinary, imageProgram)
	buildImage(t, e.collector, "../../Dockerfile", kubernetesBinary, "otelcol-hotprofile")
	var capabilities []string
	e.arguments, capabilities = dockerArguments(t)
	out, err := exec.Command("docker", "create", "--cap-add", "PERFMON", e.load).CombinedOutput()
	if err == nil {
		_ = exec.Command("docker", "rm", strings.TrimSpace(string(out))).Run()
	} else {
		// Docker before 23.0 does not know the capability PERFMON. The README names a
		// replacement.
		require.Contains(t, string(out), "unknown capability")
		at := slices.Index(capabilities, "PERFMON")
		require.GreaterOrEqual(t, at, 0)
		capabilities[at] = "SYS_ADMIN"
	}
	for _, c := range capabilities {
		e.arguments = append(e.arguments, "--cap-add", c)
	}
	t.Logf("the collector's container runs with %v", e.arguments)
	return e
}

// imageProgram is the name of the program in the load's image.
const imageProgram = "e2e-main"

// buildImage builds an image that contains a static binary.
func buildImage(t *testing.T, name, dockerfile, binary, program string) {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.Command("cp", "--", binary, filepath.Join(dir, program)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	build := exec.Command("docker", "build", "-q", "-t", name, "-f", dockerfile, dir)
	build.Env = append(os.Environ(), "DOCKER_BUILDKIT=0")
	out, err = build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", "-f", name).Run() })
}

// runLoad runs the load in a container with a CPU
// limit. It returns the ID of the container.
func (e *engine) runLoad(t *testing.T, service string, args ...string) string {
	t.Helper()
	run := append([]string{"run", "-d", "--network", "none", "--cpus", fmt.Sprint(cores), "-e", "OTEL_SERVICE_NAME=" + service, e.load}, args...)
	out, err := exec.Command("docker", run...).Output()
	require.NoError(t, err)
	id := strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("docker", "rm", "-f", id).Run() })
	favourContainer(t, id)
	return id
}

// favourContainer makes sure that a container gets the CPU time that its quota allows,
// even on a busy machine. The container's cgroup and its parents get 100 times the
// default weight. Their previous weights are restored when the test ends.
func favourContainer(t *testing.T, id string) {
	t.Helper()
	pid, err := exec.Command("docker", "inspect", "-f", "{{.State.Pid}}", id).Output()
	require.NoError(t, err)
	paths, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/cgroup")
	if err != nil {
		return // the container has ended
	}
	for line := range strings.Lines(string(paths)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		root, file, weight := "/sys/fs/cgroup", "cpu.weight", "10000"
		if f[0] != "0" {
			root, file, weight = filepath.Join(root, f[1]), "cpu.shares", "102400"
		}
		for dir := f[2]; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
			at := filepath.Join(root, dir, file)
			if before, err := os.ReadFile(at); err == nil && os.WriteFile(at, []byte(weight), 0) == nil {
				t.Cleanup(func() { _ = os.WriteFile(at, before, 0) })
			}
		}
	}
}

// startCollector runs the image of the distribution in a container. The container has
// only the rights that the chart permits, and it runs the image's own command.
func (e *engine) startCollector(t *testing.T, config string, args ...string) *collector {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o644))
	name := fmt.Sprintf("hotprofile-e2e-%d", time.Now().UnixNano())
	run := []string{"run", "--rm", "--name", name, "--network", "host", "--cgroupns=private", "-v", file + ":/etc/otelcol-hotprofile/config.yaml:ro"}
	run = append(run, e.arguments...)
	run = append(run, args...)
	run = append(run, e.collector)
	t.Cleanup(func() { _ = exec.Command("docker", "rm", "-f", name).Run() })
	return watch(t, name, exec.Command("docker", run...))
}
