// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// collector is a process of the distribution.
type collector struct {
	*child
	metrics int // the port of the collector's own metrics
}

// startCollector starts a collector and waits until it is ready. It adds a
// telemetry section to the configuration, as in the shipped configurations.
func (b *bench) startCollector(ctx context.Context, name, config string) (*collector, error) {
	return b.startCollectorOf(ctx, b.collector, name, config)
}

// startCollectorOf is like startCollector, but runs the distribution in the file binary.
func (b *bench) startCollectorOf(ctx context.Context, binary, name, config string) (*collector, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	config = fmt.Sprintf("%s\n  telemetry: {metrics: {readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: %d}}}}]}}\n", strings.TrimSpace(config), port)
	file := filepath.Join(b.dir, name+".yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	c, err := b.start(name, exec.Command(binary, "--config", file, "--feature-gates=service.profilesSupport"))
	if err != nil {
		return nil, err
	}
	const ready, limit = "Everything is ready", time.Minute
	for began := time.Now(); !strings.Contains(c.lastWords(), ready); {
		err := c.running()
		if err == nil {
			err = sleep(ctx, 50*time.Millisecond)
		}
		if err == nil && time.Since(began) > limit {
			err = fmt.Errorf("%s is not ready after %v; its last words:\n%s", name, limit, c.lastWords())
		}
		if err != nil {
			_ = c.stop()
			return nil, err
		}
	}
	return &collector{child: c, metrics: port}, nil
}

// metric returns the sum of the metric's series that have the label.
func (c *collector) metric(name, label string) (sum float64, err error) {
	resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", c.metrics))
	if err != nil {
		return 0, fmt.Errorf("read the metrics of %s: %w", c.name, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, fmt.Errorf("read the metrics of %s: %w", c.name, err)
	}
	for line := range strings.Lines(string(body)) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
		found, labels, _ := strings.Cut(series, "{")
		if !ok || found != name && found != name+"_total" && found != name+"_bytes" || !strings.Contains(labels, label) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("metrics of %s: %w", c.name, err)
		}
		sum += v
	}
	return sum, nil
}

// freePort returns a TCP port that is free on the loopback interface.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
