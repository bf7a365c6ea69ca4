// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/pprof"
)

// pprofPullers pull the endpoints that are configured.
type pprofPullers struct {
	pullers []*pprof.Puller
	clients []*http.Client
	unwatch []func()
}

// newPprof joins the parts of each endpoint; hot is nil where there is no such
// extension.
func (p *profiler) newPprof(ctx context.Context, host component.Host, at place, sink pprof.Sink, count *counters, hot hotunitsextension.HotUnits) (*pprofPullers, error) {
	all := &pprofPullers{}
	decoding := new(sync.Mutex)
	for i := range p.cfg.PprofEndpoints {
		cfg := &p.cfg.PprofEndpoints[i]
		one, unwatch, err := p.newPuller(ctx, host, at, cfg, hot)
		if err != nil {
			all.release()
			return nil, fmt.Errorf("pprof_endpoints[%d]: %w", i, err)
		}
		one.Decoding, one.Sink = decoding, sink
		one.Count, one.Lost = count.pulled, count.lostOfPprof
		all.unwatch = append(all.unwatch, unwatch)
		all.clients = append(all.clients, one.Client)
		all.pullers = append(all.pullers, pprof.New(one))
	}
	return all, nil
}

// newPuller is what one endpoint's puller needs to know, and what ends its watch
// of hot units.
func (p *profiler) newPuller(ctx context.Context, host component.Host, at place, cfg *PprofEndpointConfig, hot hotunitsextension.HotUnits) (one pprof.Config, unwatch func(), err error) {
	one = pprof.Config{
		Interval: cfg.Interval, Duration: cfg.Duration, Timeout: cfg.ClientConfig.Timeout,
		MaxSize: int64(cfg.MaxSize),
		Look:    p.cfg.DiscoveryInterval,
		Logger:  p.logger,
		Now:     time.Now,
	}
	for _, name := range cfg.Profiles {
		k, _ := pprof.KindOf(name)
		one.Kinds = append(one.Kinds, k)
	}
	if one.URL, err = url.Parse(cfg.ClientConfig.Endpoint); err != nil {
		return one, nil, err
	}
	if one.Client, err = cfg.client(ctx, host, p.settings.TelemetrySettings); err != nil {
		return one, nil, fmt.Errorf("make the client of %s: %w", one.URL, err)
	}
	finder, err := newSubjectFinder(cfg, one.URL, at)
	if err != nil {
		return one, nil, err
	}
	one.Find = finder.find
	isHot, why, err := cfg.When.resolve(hot)
	if err != nil {
		return one, nil, err
	}
	unwatch = func() {}
	if isHot {
		one.Heat = heat{hot}
		one.Changed, unwatch = hot.Watch()
	}
	p.logger.Info("A pprof endpoint is pulled", zap.Stringer("endpoint", one.URL), zap.String("socket", cfg.Socket),
		zap.String("when", why), zap.Strings("profiles", cfg.Profiles), zap.Duration("interval", cfg.Interval), zap.Duration("duration", cfg.Duration))
	return one, unwatch, nil
}

func (a *pprofPullers) start() {
	for _, p := range a.pullers {
		p.Start()
	}
}

// stop ends all pulls and waits; nothing is handed on afterwards.
func (a *pprofPullers) stop() {
	var all sync.WaitGroup
	for _, p := range a.pullers {
		all.Go(p.Stop)
	}
	all.Wait()
	a.release()
}

func (a *pprofPullers) release() {
	for _, stop := range a.unwatch {
		stop()
	}
	for _, c := range a.clients {
		c.CloseIdleConnections()
	}
}

// heat tells whether processes are among what is hot.
type heat struct{ hotunitsextension.HotUnits }

// Any says whether anything is hot.
func (h heat) Any() bool { return len(h.HotUnits.Hot()) > 0 }

// Hot says whether a process, or a cgroup or container where no process is known,
// is in a unit that is hot.
func (h heat) Hot(of processes.Identity) bool {
	for _, u := range h.HotUnits.Hot() {
		switch {
		case u.Cgroup != "" && of.Cgroup != "":
			if cgroup.Under(of.Cgroup, u.Cgroup) {
				return true
			}
		case u.ContainerID != "" && of.ContainerID != "":
			if u.ContainerID == of.ContainerID {
				return true
			}
		case u.PID != 0:
			if u.PID == of.PID && (u.Start == 0 || u.Start == of.Start) {
				return true
			}
		}
	}
	return false
}

// pulled counts a pull.
func (c *counters) pulled(o pprof.Outcome) {
	c.telemetry.CPUProfilerPprofPulls.Add(context.Background(), 1, outcome(o.String()))
}

// lostOfPprof counts what of a pulled profile was not taken.
func (c *counters) lostOfPprof(k pprof.Kind, l pprof.Lost) {
	c.left(bufferFull, k.Sampler(), l.NoRoom)
	c.left(unreadable, k.Sampler(), l.Unreadable)
}

// port is the one that a URL is of.
func port(u *url.URL) (uint16, error) {
	s := u.Port()
	if s == "" {
		s = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is no port", s)
	}
	return uint16(n), nil
}
