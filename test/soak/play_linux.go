// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"
)

// settle is the time without a change after which counters count as settled. It is longer
// than the interval at which the receiver exports and counts.
const settle = 2500 * time.Millisecond

// disagree is the maximum time for which settled counters may contradict each other.
const disagree = 15 * time.Second

// quietLimit is the time that counters may take to settle on a busy machine.
const quietLimit = 2 * time.Minute

// play runs the collector once, from its start to its end.
func (s *soak) play(ctx context.Context, a scheduled) (err error) {
	set := settings{Direct: a.direct, Loads: s.world.path("*"), Dir: s.dir, PprofSocket: s.world.pprofSocket(), Backend: s.backend.peer.Port, Final: s.finals.port}
	s.backend.serve(a.direct)
	if err := s.backend.become(a.phases[0].backend); err != nil { // the backend listens on its port again
		return err
	}
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	set.Metrics, set.Pprof, set.Manual = ports[0], ports[1], ports[2]
	before, _, _ := s.backend.took()
	c, err := startCollector(ctx, config, s.binary, fmt.Sprintf("run-%d", a.number), s.group, set)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			c.kill()
		}
	}()
	watch := s.watch(ctx, c, a)
	defer watch.stop()
	for i, p := range a.phases {
		if err := s.live(ctx, c, watch, a, i); err != nil {
			return fmt.Errorf("phase %d (%s): %w", i+1, p.backend, err)
		}
	}
	var end figures
	switch a.end {
	case killed:
		end, err = s.killQuietly(ctx, c, a)
	case drained:
		end, err = s.drain(ctx, c, watch, a)
	default:
		end, err = s.terminate(c, watch)
	}
	watch.stop()
	if err != nil {
		return err
	}
	e := newEntry(a.title(), a.direct, end)
	e.killed = a.end == killed
	after, _, _ := s.backend.took()
	e.delivered = after - before
	s.ledger.entries = append(s.ledger.entries, e)
	s.weights = append(s.weights, watch.weighed)
	for message, n := range c.complaints() {
		s.complaints[message] += n
	}
	for _, fault := range e.check() {
		progress("does not agree: %s", fault)
	}
	return s.world.faults()
}

// live runs one phase.
func (s *soak) live(ctx context.Context, c *collector, watch *watch, a scheduled, number int) error {
	p := a.phases[number]
	d := time.Duration(p.share * float64(a.duration))
	progress("%s: the backend is %s for %v %s", a.title(), p.backend, d.Round(time.Second), p.event)
	if err := s.backend.become(p.backend); err != nil {
		return err
	}
	switch p.event {
	case burst:
		if err := s.world.flood(d); err != nil {
			return err
		}
	case pause:
		watch.pause(true)
		if err := c.pause(); err != nil {
			return err
		}
	}
	end := time.Now().Add(d)
	for next := time.Duration(0); time.Now().Before(end); {
		next = min(time.Second, time.Until(end))
		if err := sleep(ctx, next); err != nil {
			return err
		}
		if err := c.running(); err != nil {
			return err
		}
		if p.event == pause {
			continue
		}
		s.world.ask(ctx, c.client, c.Manual)
		if p.backend == restarting {
			if err := s.backend.restart(); err != nil {
				return err
			}
		}
	}
	if p.event == pause {
		err := c.resume()
		watch.pause(false)
		return err
	}
	return nil
}

// terminate ends the collector under load. The collector
// pushes its final metrics at the end of its shutdown.
func (s *soak) terminate(c *collector, watch *watch) (figures, error) {
	watch.stop()
	s.finals.take()
	if err := c.terminate(); err != nil {
		return nil, err
	}
	end := s.finals.take()
	if end == nil {
		return nil, errors.New("the collector did not push its last metrics")
	}
	return end, nil
}

// killQuietly kills the collector. The last counters of a killed collector can only be
// scraped. Before the kill, the loads are therefore frozen and the gates are closed, so that
// no more events are exported. The events in the recorder are lost.
func (s *soak) killQuietly(ctx context.Context, c *collector, a scheduled) (end figures, err error) {
	if err := s.world.freeze(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.world.thaw()) }()
	if end, err = s.quiet(ctx, c, a); err != nil {
		return nil, err
	}
	c.kill()
	return end, nil
}

// quiet waits until no more events arrive, no gate is open, and the counters agree. A
// scrape does not read all counters at the same moment. While the recorder drops samples,
// the counters of a scrape may contradict each other, so quiet tries another scrape.
func (s *soak) quiet(ctx context.Context, c *collector, a scheduled) (figures, error) {
	var still time.Time
	var last map[string]int64
	deadline := time.Now().Add(quietLimit)
	for {
		f, err := c.scrape(ctx)
		if err != nil {
			return nil, errors.Join(err, c.running())
		}
		e := newEntry(a.title(), a.direct, f)
		e.killed = true
		now := maps.Clone(e.read)
		now["lost in the kernel"] = e.lost
		if last == nil || !maps.Equal(now, last) {
			still, last = time.Now(), now
		}
		e.delivered = e.decided["passed"] // the delivered events are not known yet
		faults := e.check()
		switch quiet := time.Since(still) > settle && f.sum("otelcol_cpu_trigger_gates_open") == 0; {
		case quiet && len(faults) == 0, time.Since(still) > disagree && quiet: // faults are reported later
			return f, nil
		case time.Now().After(deadline):
			return nil, fmt.Errorf("the collector is not quiet %v after its loads were frozen: %d gates are open, and it has read %v",
				quietLimit, f.sum("otelcol_cpu_trigger_gates_open"), last)
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// drain waits until the queue has been sent to a healthy
// backend. Then it terminates the collector.
func (s *soak) drain(ctx context.Context, c *collector, watch *watch, a scheduled) (figures, error) {
	if err := s.world.freeze(); err != nil {
		return nil, err
	}
	progress("%s: draining", a.title())
	deadline := time.Now().Add(quietLimit)
	var still time.Time
	for last := int64(-1); ; {
		f, err := c.scrape(ctx)
		if err != nil {
			return nil, errors.Join(err, c.running())
		}
		out, twice, rejected := s.backend.took()
		if now := out + twice + rejected + total(f.by(profilerSamples, "outcome")); now != last {
			last, still = now, time.Now()
		}
		s.left = f.sum("otelcol_exporter_queue_size")
		if time.Since(still) > settle && s.left == 0 && f.sum("otelcol_cpu_trigger_gates_open") == 0 {
			break
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("the queue still has %d bytes after %v", s.left, quietLimit)
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return nil, err
		}
	}
	return s.terminate(c, watch)
}
