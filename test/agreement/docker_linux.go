// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package agreement

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"time"
)

// Docker is a client of a Docker engine's HTTP API.
type Docker struct {
	client http.Client
	base   string
}

// NewDocker connects to an engine. The address has the form of DOCKER_HOST, which is
// unix:// or tcp://. An empty address is the default address.
func NewDocker(host string) (*Docker, error) {
	if host == "" {
		host = "unix:///var/run/docker.sock"
	}
	u, err := url.Parse(host)
	if err != nil {
		return nil, fmt.Errorf("parse the Docker engine's address: %w", err)
	}
	switch u.Scheme {
	case "tcp":
		return &Docker{base: "http://" + u.Host}, nil
	case "unix":
		d := &Docker{base: "http://docker"}
		d.client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", u.Path)
		}}
		return d, nil
	default:
		return nil, fmt.Errorf("the Docker engine's address %s is neither unix:// nor tcp://", host)
	}
}

// Close closes idle connections.
func (d *Docker) Close() { d.client.CloseIdleConnections() }

type dockerStats struct {
	Read     time.Time `json:"read"`
	CPUStats struct {
		CPUUsage struct {
			Total  uint64 `json:"total_usage"`
			User   uint64 `json:"usage_in_usermode"`
			Kernel uint64 `json:"usage_in_kernelmode"`
		} `json:"cpu_usage"`
		System     uint64 `json:"system_cpu_usage"`
		OnlineCPUs int    `json:"online_cpus"`
	} `json:"cpu_stats"`
}

func (d *Docker) stats(id string) (s dockerStats, err error) {
	resp, err := d.client.Get(d.base + "/containers/" + id + "/stats?stream=false&one-shot=true")
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the engine answers %s: %s", resp.Status, body)
	}
	if err == nil {
		err = json.Unmarshal(body, &s)
	}
	return s, err
}

// Stats computes the CPU usage in the same way as docker stats. It divides the growth of
// the container's CPU time by the growth of the CPU time of the host. The CPU time of the
// host comes from /proc/stat. It includes idle time but not the time that a hypervisor
// stole. The result is multiplied by the number of online CPUs, so it is a number of
// cores. If byTimestamps is set, Stats divides by the time between the engine's timestamps
// of the two readings instead.
func (d *Docker) Stats(id string, unified, byTimestamps bool) Tool {
	name := "docker stats"
	if byTimestamps {
		name += ", by its timestamps"
	}
	return Tool{Name: name, Start: func() (func() (Figures, error), error) {
		first, err := d.stats(id)
		return func() (Figures, error) {
			second, err := d.stats(id)
			if err != nil {
				return Figures{}, err
			}
			a, b := first.CPUStats, second.CPUStats
			elapsed := second.Read.Sub(first.Read)
			system := float64(b.System - a.System)
			f := Figures{Elapsed: elapsed, TotalStep: 2 * time.Microsecond, SplitStep: splitStep(unified)}
			if clock := float64(elapsed) * float64(b.OnlineCPUs); byTimestamps {
				system = clock
			} else {
				f.Clock = math.Abs(1 - system/clock)
			}
			cores := func(first, last uint64) float64 {
				percent := float64(last-first) / system * float64(b.OnlineCPUs) * 100
				return percent / 100
			}
			f.Total = cores(a.CPUUsage.Total, b.CPUUsage.Total)
			f.User = cores(a.CPUUsage.User, b.CPUUsage.User)
			f.System = cores(a.CPUUsage.Kernel, b.CPUUsage.Kernel)
			return f, nil
		}, err
	}}
}
