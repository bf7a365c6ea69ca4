// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/template"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip"

	"github.com/hotprofile/hotprofile/test/hosttest/scratch"
)

// finals is the server to which the collector pushes its last metrics.
type finals struct {
	pmetricotlp.UnimplementedGRPCServer
	port   int
	server *grpc.Server
	served chan struct{}

	mu   sync.Mutex
	last figures // nil if no metrics have arrived since the last take
}

func startFinals() (*finals, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the last metrics: %w", err)
	}
	f := &finals{port: l.Addr().(*net.TCPAddr).Port, server: grpc.NewServer(), served: make(chan struct{})}
	pmetricotlp.RegisterGRPCServer(f.server, f)
	go func() {
		defer close(f.served)
		_ = f.server.Serve(l)
	}()
	return f, nil
}

func (f *finals) stop() {
	f.server.Stop()
	<-f.served
}

// Export stores the metrics that the collector pushes.
func (f *finals) Export(_ context.Context, r pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = readOTLP(r.Metrics())
	return pmetricotlp.NewExportResponse(), nil
}

// take returns the figures that were pushed since the last call.
func (f *finals) take() figures {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := f.last
	f.last = nil
	return last
}

// collector is one run of the distribution.
type collector struct {
	settings
	cmd    *exec.Cmd
	log    string
	done   chan struct{}
	err    error // valid once done is closed
	client *http.Client
}

// startCollector starts a collector in the cgroup and waits until the collector is ready.
func startCollector(ctx context.Context, config *template.Template, binary, name string, group *scratch.Cgroup, set settings) (*collector, error) {
	text, err := set.yaml(config)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(set.Dir, name+".yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	c := &collector{settings: set, log: filepath.Join(set.Dir, name+".log"), done: make(chan struct{}), client: &http.Client{Timeout: 5 * time.Second}}
	log, err := os.Create(c.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c.cmd = group.Command(binary, "--config", file)
	if set.GoMemory != "" {
		c.cmd.Env = append(os.Environ(), "GOMEMLIMIT="+set.GoMemory)
	}
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the collector: %w", err)
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	const limit = 2 * time.Minute
	for began := time.Now(); ; {
		if _, err := c.scrape(ctx); err == nil && strings.Contains(c.logText(), "Everything is ready") {
			return c, nil
		}
		err := c.running()
		if err == nil {
			err = sleep(ctx, 100*time.Millisecond)
		}
		if err == nil && time.Since(began) > limit {
			err = fmt.Errorf("the collector is not ready after %v; its last words:\n%s", limit, c.lastWords())
		}
		if err != nil {
			c.kill()
			return nil, err
		}
	}
}

// running returns an error with the end of the log if the collector has ended.
func (c *collector) running() error {
	select {
	case <-c.done:
		return errors.Join(fmt.Errorf("the collector ended by itself; its last words:\n%s", c.lastWords()), c.err)
	default:
		return nil
	}
}

func (c *collector) logText() string {
	text, _ := os.ReadFile(c.log)
	return string(text)
}

func (c *collector) lastWords() string {
	lines := strings.Split(strings.TrimSpace(c.logText()), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// kill ends the collector without a shutdown, like a crash.
func (c *collector) kill() {
	_ = c.cmd.Process.Kill()
	<-c.done
}

// terminate ends the collector with SIGTERM, as a service manager does.
func (c *collector) terminate() error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	const limit = time.Minute
	select {
	case <-c.done:
	case <-time.After(limit):
		c.kill()
		return fmt.Errorf("the collector did not end within %v of SIGTERM and was killed", limit)
	}
	if c.err != nil {
		return fmt.Errorf("the collector ended badly: %w; its last words:\n%s", c.err, c.lastWords())
	}
	return nil
}

// pause stops the collector until resume is called.
func (c *collector) pause() error  { return c.cmd.Process.Signal(syscall.SIGSTOP) }
func (c *collector) resume() error { return c.cmd.Process.Signal(syscall.SIGCONT) }

func (c *collector) get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// scrape reads the collector's own metrics.
func (c *collector) scrape(ctx context.Context) (figures, error) {
	body, err := c.get(ctx, fmt.Sprintf("http://127.0.0.1:%d/metrics", c.Metrics))
	if err != nil {
		return nil, fmt.Errorf("scrape the collector: %w", err)
	}
	return readPrometheus(bytes.NewReader(body))
}

// weight is the resource usage of the collector at one moment. It contains the memory, the
// goroutines and the file descriptors.
type weight struct {
	rss         int64
	goroutines  int
	descriptors int
}

// resident returns the resident memory of the collector.
func (c *collector) resident() (bytes int64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.cmd.Process.Pid))
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmRSS:" {
			kib, _ := strconv.ParseInt(fields[1], 10, 64)
			bytes = kib << 10
		}
	}
	return bytes, err
}

// weigh returns the collector's current resource usage. It returns an error if the usage
// cannot be read at the moment.
func (c *collector) weigh(ctx context.Context) (w weight, err error) {
	if w.rss, err = c.resident(); err != nil {
		return w, err
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.cmd.Process.Pid))
	if err != nil {
		return w, err
	}
	w.descriptors = len(open)
	body, err := c.get(ctx, fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/goroutine?debug=1", c.Pprof))
	if err != nil {
		return w, err
	}
	_, err = fmt.Sscanf(string(body), "goroutine profile: total %d", &w.goroutines)
	return w, err
}

// ports matches the local addresses in gRPC messages. Their ports are different in
// every run.
var ports = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// complaints counts the warnings and errors in the log, by message.
func (c *collector) complaints() map[string]int {
	all := map[string]int{}
	for line := range strings.Lines(c.logText()) {
		var l struct{ Level, Msg string }
		switch err := json.Unmarshal([]byte(line), &l); {
		case err != nil && strings.TrimSpace(line) != "":
			all["no JSON: "+line[:min(len(line), 80)]]++
		case l.Level == "warn" || l.Level == "error" || l.Level == "fatal" || l.Level == "panic" || l.Level == "dpanic":
			all[l.Level+": "+ports.ReplaceAllString(l.Msg, "127.0.0.1:…")]++
		}
	}
	return all
}

// freePorts returns different TCP ports that are free on the loopback interface.
func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // after all ports are chosen
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// sleep waits for d. It returns an error if it is interrupted.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return errors.New("interrupted")
	}
}
