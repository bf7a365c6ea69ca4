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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/test/hosttest"
)

// These are abilities of a collector. A test finds each ability in the
// data that the collector sent. Allocations have a separate test,
// because kernels differ in the rights that probes need.
const (
	seeOwn      = "own processes with names"
	seeOthers   = "other users' processes"
	seeKernel   = "kernel stacks"
	seeKallsyms = "kernel names"
	seeService  = "others' service names"
	seeNames    = "others' function names"
	seeSecret   = "names from files that others may not read"
	seeDeleted  = "names from deleted files"
	seeOwnWaits = "own waits"
	seeWaits    = "others' waits"
	seeReasons  = "what waits are for"
)

var everything = []string{
	seeOwn, seeOthers, seeKernel, seeKallsyms, seeService, seeNames, seeSecret, seeDeleted,
	seeOwnWaits, seeWaits, seeReasons,
}

// TestWhatEachCapabilityAllows runs the collector as an ordinary user with
// different sets of capabilities. Root and this user run the sampled
// programs. The table in docs/security.md was made from the results.
func TestWhatEachCapabilityAllows(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	paranoid, err := os.ReadFile("/proc/sys/kernel/perf_event_paranoid")
	require.NoError(t, err)
	if strings.TrimSpace(string(paranoid)) != "2" {
		hosttest.SkipUnprivileged(t, "kernel.perf_event_paranoid is %s, and what capabilities allow is known for 2", paranoid)
	}
	const (
		perfmon = unix.CAP_PERFMON
		ptrace  = unix.CAP_SYS_PTRACE
		read    = unix.CAP_DAC_READ_SEARCH
		syslog  = unix.CAP_SYSLOG
		restore = unix.CAP_CHECKPOINT_RESTORE
		admin   = unix.CAP_SYS_ADMIN
	)
	all := []uintptr{perfmon, ptrace, read, syslog}
	without := func(what ...string) (left []string) {
		for _, w := range everything {
			if !slices.Contains(what, w) {
				left = append(left, w)
			}
		}
		return left
	}
	cgroup := newCgroup(t, "privileges")
	cgroup.SetQuota(t, 1)
	cgroup.RaiseWeight(t)
	p := startPrograms(t, cgroup)
	withoutPtrace := []string{seeOwn, seeOthers, seeKernel, seeKallsyms, seeOwnWaits, seeWaits, seeReasons}
	if perfmonReadsMemory(t, p.others) {
		withoutPtrace = append(withoutPtrace, seeService)
	}
	for _, tt := range []struct {
		name   string
		caps   []uintptr
		target string
		want   []string
	}{
		{"the documented four", all, "", without(seeDeleted)},
		{"and CAP_CHECKPOINT_RESTORE", append(slices.Clone(all), restore), "", everything},
		{"and CAP_SYS_ADMIN", append(slices.Clone(all), admin), "", everything},
		{"without CAP_PERFMON", []uintptr{ptrace, read, syslog}, "", []string{seeOwn}},
		{"without CAP_PERFMON, a cgroup", []uintptr{ptrace, read, syslog}, cgroup.Path, nil},
		{"without CAP_SYS_PTRACE", []uintptr{perfmon, read, syslog}, "", withoutPtrace},
		{"without CAP_DAC_READ_SEARCH", []uintptr{perfmon, ptrace, syslog}, "", without(seeDeleted, seeSecret, seeService)},
		{"without CAP_SYSLOG", []uintptr{perfmon, ptrace, read}, "", without(seeDeleted, seeKallsyms, seeReasons)},
		{"CAP_PERFMON alone", []uintptr{perfmon}, "", []string{seeOwn, seeOthers, seeKernel, seeOwnWaits, seeWaits}},
		{"CAP_PERFMON alone, a cgroup", []uintptr{perfmon}, cgroup.Path, []string{seeOwn, seeOthers, seeKernel, seeOwnWaits, seeWaits}},
		{"none", nil, "", []string{seeOwn}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := startWire(t)
			targets := ""
			if tt.target != "" {
				targets = fmt.Sprintf("targets: [{cgroup: %s}], ", tt.target)
			}
			c := startAs(t, fmt.Sprintf(`
receivers:
  cpu_profiler: {%sfrequency: 397, max_overhead: 0, export_interval: 250ms, discovery_interval: 1s, buffer_size: 16MiB, off_cpu: {when: always}}
exporters:
  otlp_grpc: {endpoint: "127.0.0.1:%d", tls: {insecure: true}, timeout: 30s, sending_queue: {enabled: false}, retry_on_failure: {enabled: false}}
service:
  telemetry: {logs: {encoding: json, sampling: {enabled: false}}, metrics: {level: none}}
  pipelines:
    profiles: {receivers: [cpu_profiler], exporters: [otlp_grpc]}
`, targets, w.port), &syscall.SysProcAttr{
				Credential:  &syscall.Credential{Uid: nobody, Gid: nobody},
				AmbientCaps: tt.caps,
			})
			c.wait(startTimeout, "Everything is ready. Begin running and processing data.", nil)
			var seen map[string]bool
			missing := func() (m []string) {
				seen = p.seen(w.received())
				for _, what := range tt.want {
					if !seen[what] {
						m = append(m, what)
					}
				}
				return m
			}
			if len(tt.want) == 0 {
				c.wait(startTimeout, "nothing can be sampled", nil)
			} else {
				assert.Eventually(t, func() bool { return len(missing()) == 0 }, startTimeout, 100*time.Millisecond)
				exported := len(w.received()) // forbidden data would appear in one of the next requests
				assert.Eventually(t, func() bool { return len(w.received()) > exported+6 }, startTimeout, 50*time.Millisecond)
			}
			c.stop()
			missing()
			for _, msg := range []string{
				"sampling started", "nothing can be sampled",
				"off-CPU sampling is not possible; other samplers continue",
			} {
				for _, l := range c.lines(msg) {
					delete(l, "otelcol.component.id")
					t.Logf("%s: %v", msg, l)
				}
			}
			for _, l := range c.lines("off-CPU sampling started") {
				require.Equal(t, !slices.Contains(tt.want, seeReasons), strings.Contains(l.str("not_shown"), "CAP_SYSLOG"), l)
			}
			for _, what := range everything {
				if seen[what] != slices.Contains(tt.want, what) {
					t.Errorf("%s: seen %v", what, seen[what])
				}
			}
		})
	}
}

// programs are the sampled processes. The collector runs as another user.
type programs struct{ own, others, secret, deleted int }

func startPrograms(t *testing.T, cgroup *hosttest.Cgroup) programs {
	t.Helper()
	dir, err := os.MkdirTemp("", "hotprofile-e2e-privileges-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	file := func(name, from string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		copyFile(t, from, path)
		require.NoError(t, os.Chmod(path, mode))
		return path
	}
	start := func(service, program string, as *syscall.SysProcAttr, args ...string) int {
		cmd := cgroup.Command(program, args...)
		if as != nil {
			// Only root may move itself into the cgroup.
			user := append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", "--pdeathsig=KILL", "--", program}, args...)
			cmd = cgroup.Command(hosttest.Tool(t, "setpriv"), user...)
		}
		startLoad(t, cmd, service)
		return cmd.Process.Pid
	}
	user := &syscall.SysProcAttr{}
	doomed := file("doomed", loadBinary, 0o755)
	p := programs{
		own:     start("own", file("own", loadBinary, 0o755), user, "-waiting", "1"),
		others:  start("others", file("others", loadBinary, 0o755), nil, "-kernel-threads", "1", "-waiting", "1"),
		secret:  start("secret", file("secret", loadBinary, 0o700), nil),
		deleted: start("deleted", doomed, nil),
	}
	require.Eventually(t, func() bool {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.deleted))
		return err == nil && exe == doomed
	}, startTimeout, 10*time.Millisecond)
	require.NoError(t, os.Remove(doomed))
	return p
}

// perfmonReadsMemory reports whether the kernel lets CAP_PERFMON read the memory and the
// environment of a process, as newer kernels do.
func perfmonReadsMemory(t *testing.T, pid int) bool {
	t.Helper()
	f, err := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
		"--inh-caps=-all,+perfmon,+dac_read_search", "--ambient-caps=-all,+perfmon,+dac_read_search", "--",
		"cat", fmt.Sprintf("/proc/%d/environ", pid)).Output()
	t.Logf("CAP_PERFMON and CAP_DAC_READ_SEARCH without CAP_SYS_PTRACE read another's environment: %v", err == nil)
	return err == nil && len(f) > 0
}

// seen returns the abilities that the batches prove.
func (p programs) seen(batches []pprofile.Profiles) map[string]bool {
	seen := map[string]bool{}
	for _, b := range batches {
		if stacks, names := kernelFrames(b); stacks {
			seen[seeKernel] = true
			seen[seeKallsyms] = seen[seeKallsyms] || names
		}
	}
	for _, f := range flatten(batches) {
		pid, _ := f.resource["process.pid"].(int64)
		named := shares([]profile{f}, "burnThreeParts")["burnThreeParts"] > 0
		own := int(pid) == p.own
		switch f.sampleType {
		case "samples":
			seen[seeOwn] = seen[seeOwn] || int(pid) == p.own && named && f.service() == "own"
			seen[seeOthers] = seen[seeOthers] || int(pid) == p.others
			seen[seeService] = seen[seeService] || int(pid) == p.others && f.service() == "others"
			seen[seeNames] = seen[seeNames] || int(pid) == p.others && named
			seen[seeSecret] = seen[seeSecret] || int(pid) == p.secret && named
			seen[seeDeleted] = seen[seeDeleted] || int(pid) == p.deleted && named
		case "off_cpu":
			seen[seeOwnWaits] = seen[seeOwnWaits] || own
			seen[seeWaits] = seen[seeWaits] || !own
			seen[seeReasons] = seen[seeReasons] || slices.ContainsFunc(f.samples, func(s sample) bool { return s.wait != "" })
		}
	}
	return seen
}

// kernelFrames reports whether a batch has kernel frames, and whether any kernel frame has a
// name.
func kernelFrames(b pprofile.Profiles) (stacks, names bool) {
	d := b.Dictionary()
	for _, l := range d.LocationTable().All() {
		if attributes(d, l.AttributeIndices())["profile.frame.type"] == "kernel" {
			stacks = true
			names = names || l.Lines().Len() > 0
		}
	}
	return stacks, names
}

// TestProbesNeedMoreThanTheDocumentedCapabilities samples allocations of a program
// that belongs to root. The collector runs as another user. With CAP_SYS_ADMIN the
// collector must sample the allocations. Without CAP_SYS_ADMIN it depends on the
// kernel whether the collector samples the allocations or logs the missing right.
func TestProbesNeedMoreThanTheDocumentedCapabilities(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	skipWithoutProbes(t)
	cgroup := newCgroup(t, "probes")
	cgroup.SetQuota(t, cores)
	cgroup.RaiseWeight(t)
	startLoad(t, cgroup.Command(buildAllocating(t), "-busy", "1h"), hotService)
	for name, caps := range map[string][]uintptr{
		"with CAP_SYS_ADMIN":    {unix.CAP_PERFMON, unix.CAP_SYS_PTRACE, unix.CAP_DAC_READ_SEARCH, unix.CAP_SYS_ADMIN},
		"without CAP_SYS_ADMIN": {unix.CAP_PERFMON, unix.CAP_SYS_PTRACE, unix.CAP_DAC_READ_SEARCH},
	} {
		t.Run(name, func(t *testing.T) {
			w := startWire(t)
			c := startAs(t, fmt.Sprintf(`
receivers:
  cpu_profiler: {targets: [{cgroup: %s}], export_interval: 1s, allocations: {when: always}}
exporters:
  otlp_grpc: {endpoint: "127.0.0.1:%d", tls: {insecure: true}}
service:
  telemetry: {logs: {encoding: json, sampling: {enabled: false}}, metrics: {level: none}}
  pipelines:
    profiles: {receivers: [cpu_profiler], exporters: [otlp_grpc]}
`, cgroup.Path, w.port), &syscall.SysProcAttr{
				Credential:  &syscall.Credential{Uid: nobody, Gid: nobody},
				AmbientCaps: caps,
			})
			sampled := func() bool {
				return slices.ContainsFunc(flatten(w.received()), func(p profile) bool { return p.sampleType == "alloc_space" })
			}
			refused := func() []logLine {
				return c.lines("allocations of some processes cannot be sampled; everything else continues")
			}
			require.Eventually(t, func() bool { return sampled() || len(refused()) > 0 }, startTimeout, 50*time.Millisecond)
			if len(refused()) > 0 {
				t.Logf("refused: %s", refused()[0].str("why"))
				require.NotEqual(t, "with CAP_SYS_ADMIN", name)
				require.Contains(t, refused()[0].str("why"), "it needs CAP_SYS_ADMIN (CAP_PERFMON is there, which this kernel does not accept for probes)")
			}
		})
	}
}

// TestCapabilitiesByTheFile starts a collector as an ordinary user. The capabilities
// come from the collector's executable file, on which setcap has set them.
func TestCapabilitiesByTheFile(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	setcap := hosttest.Tool(t, "setcap") // in Debian's package libcap2-bin
	if err := perfevent.Probe().HostWide; err != nil {
		hosttest.SkipUnprivileged(t, "%v", err)
	}
	dir, err := os.MkdirTemp("", "hotprofile-e2e-setcap-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	binary, file := filepath.Join(dir, "collector"), filepath.Join(dir, "config.yaml")
	copyFile(t, collectorBinary, binary)
	out, err := exec.Command(setcap, "cap_perfmon,cap_sys_ptrace,cap_dac_read_search,cap_syslog=ep", binary).CombinedOutput()
	if err != nil {
		hosttest.SkipUnprivileged(t, "give capabilities to a file: %v: %s", err, out)
	}
	w := startWire(t)
	require.NoError(t, os.WriteFile(file, []byte(gateTo(w, "/")), 0o644))
	cmd := exec.Command(binary, "--config", file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	c := watch(t, "collector", cmd)
	endWithTests(t, cmd.Process.Pid)
	started := c.wait(startTimeout, "sampling started", nil)
	require.Equal(t, "[]", started.str("not_sampled"))
	require.Equal(t, "[]", started.str("not_shown"))
}

// endWithTests kills a process if the tests end without having stopped the
// process. It is needed for programs that get capabilities from their
// file, because the kernel clears their parent death signal.
func endWithTests(t *testing.T, pid int) {
	t.Helper()
	guard := exec.Command("/bin/sh", "-c", `read _ || kill -9 "$0"`, strconv.Itoa(pid))
	_, err := guard.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, guard.Start())
	t.Cleanup(func() {
		_ = guard.Process.Kill()
		_ = guard.Wait()
	})
}
