// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/test/hosttest"
)

// collector is a running process of a collector.
type collector struct {
	t     testing.TB
	cmd   *exec.Cmd
	ended chan struct{}
	err   error

	mu   sync.Mutex
	logs []logLine
	raw  strings.Builder
	more chan struct{} // closed and replaced after each line
}

// logLine is one line of the collector's JSON log.
type logLine map[string]any

func (l logLine) msg() string { s, _ := l["msg"].(string); return s }

func (l logLine) str(key string) string {
	if s, ok := l[key].(string); ok {
		return s
	}
	return fmt.Sprint(l[key])
}

// at returns the time of the line, which has a resolution of milliseconds.
func (l logLine) at() time.Time {
	at, _ := time.Parse(time.RFC3339Nano, l.str("ts"))
	return at
}

// withTracefs is an environment variable that mounts the kernel's
// tracefs at its usual place. Only the collector sees the mount.
const withTracefs = "HOTPROFILE_E2E_TRACEFS=1"

// startCollector starts the distribution with a configuration, which must set
// JSON logs. A collector that still runs is stopped at the end of the test.
func startCollector(t testing.TB, name, config string, env ...string) *collector {
	t.Helper()
	return startBinary(t, collectorBinary, name, config, env...)
}

func startBinary(t testing.TB, binary, name, config string, env ...string) *collector {
	t.Helper()
	file := filepath.Join(t.TempDir(), name+".yaml")
	require.NoError(t, os.WriteFile(file, []byte(config), 0o644))
	cmd := exec.Command(binary, "--config", file)
	if binary == os.Getenv("HOTPROFILE_PEER") { // this collector has no converter that enables profiles
		cmd.Args = append(cmd.Args, "--feature-gates=service.profilesSupport")
	}
	if slices.Contains(env, withTracefs) {
		// The mount namespace ends with the collector.
		cmd = inTracefs(cmd.Args...)
	}
	cmd.Env = append(os.Environ(), env...)
	return watch(t, name, cmd)
}

// inTracefs returns a command that runs a program in a mount namespace with tracefs.
func inTracefs(args ...string) *exec.Cmd {
	return exec.Command("unshare", append([]string{"--mount", "sh", "-c", `mount -t tracefs tracefs /sys/kernel/tracing && exec "$@"`, "sh"}, args...)...)
}

// watch starts a command and reads a collector's log from its output. The
// collector gets a higher CPU weight, so that other load on the machine does
// not slow it down. The collector is killed if the tests are killed.
func watch(t testing.TB, name string, cmd *exec.Cmd) *collector {
	t.Helper()
	c := &collector{t: t, cmd: cmd, ended: make(chan struct{}), more: make(chan struct{})}
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = w, w
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	if os.Geteuid() == 0 {
		own := hosttest.NewCgroup(t, "hotprofile-e2e-collector")
		own.RaiseWeight(t)
		defer func() { own.Add(t, cmd.Process.Pid) }()
	}
	require.NoError(t, cmd.Start())
	w.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		scan := bufio.NewScanner(r)
		scan.Buffer(nil, 1<<20)
		for scan.Scan() {
			c.add(scan.Text())
		}
		r.Close()
	}()
	go func() {
		c.err = cmd.Wait()
		<-read
		close(c.ended)
	}()
	t.Cleanup(func() {
		c.stop()
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, c.text())
		}
	})
	return c
}

func (c *collector) add(line string) {
	var l logLine
	if json.Unmarshal([]byte(line), &l) != nil {
		l = logLine{"msg": line}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.logs = append(c.logs, l)
	// The output of the debug exporter is long and hides the other lines.
	if c.raw.Len() < 1<<20 && l.str("otelcol.component.id") != "debug" {
		c.raw.WriteString(line + "\n")
	}
	close(c.more)
	c.more = make(chan struct{})
}

func (c *collector) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.raw.String()
}

// all returns the log lines so far.
func (c *collector) all() []logLine {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.logs)
}

// lines returns the log lines so far that have the given message.
func (c *collector) lines(msg string) (out []logLine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.logs {
		if l.msg() == msg {
			out = append(out, l)
		}
	}
	return out
}

// wait waits for a line with the given message for which ok returns
// true. If ok is nil, any line with the message counts.
func (c *collector) wait(limit time.Duration, msg string, ok func(logLine) bool) logLine {
	c.t.Helper()
	deadline := time.After(limit)
	next := 0
	for {
		c.mu.Lock()
		for ; next < len(c.logs); next++ {
			if l := c.logs[next]; l.msg() == msg && (ok == nil || ok(l)) {
				c.mu.Unlock()
				return l
			}
		}
		more := c.more
		c.mu.Unlock()
		select {
		case <-more:
		case <-c.ended:
			c.t.Fatalf("collector ended (%v) before %q", c.err, msg)
		case <-deadline:
			c.t.Fatalf("no %q within %v", msg, limit)
		}
	}
}

// stop interrupts the collector, as Ctrl-C does, and waits until the collector has
// ended.
func (c *collector) stop() {
	_ = c.cmd.Process.Signal(os.Interrupt)
	select {
	case <-c.ended:
	case <-time.After(time.Minute):
		_ = c.cmd.Process.Kill()
		<-c.ended
		c.t.Error("the collector did not end within a minute of SIGINT")
	}
}

// scrape reads the collector's own metrics. It returns the sum
// of the metric's series that have all the given labels.
func scrape(t testing.TB, port int, metric string, labels ...string) float64 {
	t.Helper()
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	sum := 0.0
	for line := range strings.Lines(string(body)) {
		line = strings.TrimSpace(line)
		space := strings.LastIndexByte(line, ' ') // a series without labels has no braces
		if space < 0 {
			continue
		}
		series, value := line[:space], line[space+1:]
		name, rest, _ := strings.Cut(series, "{")
		if name != metric {
			continue
		}
		all := true
		for _, l := range labels {
			all = all && strings.Contains(rest, l)
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil && all {
			sum += v
		}
	}
	return sum
}

// given contains the ports that freePort has returned. It is needed because the kernel
// chooses ports at random, and may choose a port again before the caller listens on it.
var given sync.Map

// freePort returns a TCP port that is free on the loopback
// interface. Each call returns a different port.
func freePort(t testing.TB) int {
	t.Helper()
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		port := l.Addr().(*net.TCPAddr).Port
		require.NoError(t, l.Close())
		if _, known := given.LoadOrStore(port, true); !known {
			return port
		}
	}
}

// newCgroup returns a cgroup that belongs to the test.
// The pattern of ofThisTest matches the cgroup.
func newCgroup(t testing.TB, name string) *hosttest.Cgroup {
	t.Helper()
	return hosttest.NewCgroup(t, fmt.Sprintf("hotprofile-e2e-%08x-%s", crc32.ChecksumIEEE([]byte(t.Name())), name))
}

// ofThisTest returns a pattern that matches only the cgroups that newCgroup made for this
// test, so that other hot cgroups on the machine open no gate and use no budget.
func ofThisTest(t testing.TB) string {
	return fmt.Sprintf("/hotprofile-e2e-%08x-*-%d-*", crc32.ChecksumIEEE([]byte(t.Name())), os.Getpid())
}
