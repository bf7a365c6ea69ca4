// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/processor"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/identify"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/manual"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/recorder"
)

// warmFrom is the part of a threshold from which on a unit is looked at more
// closely, and warmGaugeFrom that of a gauge.
const (
	warmFrom      = 0.5
	warmGaugeFrom = 0.9
)

// cpuTrigger is the component. Three goroutines work beside the callers of
// ConsumeProfiles: one reads, one evaluates and reports, one looks for units.
type cpuTrigger struct {
	id        component.ID
	telemetry component.TelemetrySettings
	cfg       *Config
	log       *zap.Logger
	now       func() time.Time
	counters  *counters.Counters
	units     *units
	eval      *evaluator
	gate      *gate
	sender    *recorder.Sender // nil without pre_trigger

	manual *manual.Server // nil: no gate is opened by hand
	memory *memory        // nil: nothing is kept over a restart
	hot    *hotList       // nil: there is nobody to tell what is hot

	cancel  context.CancelFunc
	running sync.WaitGroup
	closed  atomic.Bool
}

func newProcessor(set processor.Settings, cfg *Config, next xconsumer.Profiles) (*cpuTrigger, error) {
	return newProcessorAt(set, cfg, next, time.Now, rand.Reader)
}

func newProcessorAt(set processor.Settings, cfg *Config, next xconsumer.Profiles, now func() time.Time, random io.Reader) (*cpuTrigger, error) {
	core := cfg.trigger(cfg.enabled())
	core.NewID = func() string { return newID(random) }
	engine, err := trigger.New(core)
	if err != nil {
		return nil, err
	}
	metrics, err := counters.New(set.TelemetrySettings, cfg.monitors())
	if err != nil {
		return nil, err
	}
	selectors, err := newSelectors(cfg.enabled())
	if err != nil {
		return nil, err
	}
	p := &cpuTrigger{id: set.ID, telemetry: set.TelemetrySettings, cfg: cfg, log: set.Logger, now: now, counters: metrics, units: newUnits(engine, selectors)}
	p.units.byService = cfg.CooldownBy == CooldownByService || cfg.Budgets.MaxTriggersPerServicePerHour > 0
	types := map[string][]profileType{}
	p.eval = &evaluator{
		units: p.units, debug: newDebugUnits(cfg.DebugUnits, set.Logger), now: now,
		reporter: &reporter{log: set.Logger, counters: metrics, types: types},
	}
	p.gate = &gate{
		scope: cfg.Scope, units: p.units,
		passUnmatched: cfg.Unmatched == UnmatchedPass, now: now, log: set.Logger, types: types,
		next: next, byteBudget: cfg.Budgets.MaxBytesPerHour > 0,
		remove: newAttributeFilter(cfg.KeepProcessAttributes),
	}
	if cfg.PreTrigger > 0 {
		filtered := map[string]bool{}
		for _, policy := range cfg.enabled() {
			filtered[policy.Name] = len(policy.ProfileTypes) > 0
		}
		p.units.recorder = recorder.New(recorder.Config{
			PreTrigger: cfg.PreTrigger, PerUnit: int(cfg.PreTriggerMemoryPerUnit), Memory: int(cfg.PreTriggerMemory), Filtered: filtered,
		}, metrics, now())
		p.sender = recorder.NewSender(recordQueue{p.units}, p.sendRecorded)
	}
	for _, policy := range cfg.enabled() {
		for _, t := range policy.ProfileTypes {
			parsed, err := parseProfileType(t)
			if err != nil {
				return nil, err
			}
			p.gate.types[policy.Name] = append(p.gate.types[policy.Name], parsed)
		}
	}
	if err := metrics.Observe(p.units.Count, p.units.recorder.Held); err != nil {
		return nil, err
	}
	return p, nil
}

// newID makes a name that no other trigger of any collector has.
func newID(random io.Reader) string {
	var b [8]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return fmt.Sprintf("%x", time.Now().UnixNano())
	}
	return hex.EncodeToString(b[:])
}

// Capabilities says that what passes is stamped in place.
func (*cpuTrigger) Capabilities() consumer.Capabilities {
	return consumer.Capabilities{MutatesData: true}
}

// Start finds the host's control groups. Without them it goes on: profiles are
// then of no known unit, and the fault is said once.
func (p *cpuTrigger) Start(ctx context.Context, host component.Host) error {
	if effective, err := p.cfg.effective(); err == nil {
		p.log.Debug("Continuous profiling configuration:", zap.Any("cpu_trigger", effective))
	}
	if err := p.start(ctx, host); err != nil {
		return errors.Join(err, p.Shutdown(ctx))
	}
	return nil
}

func (p *cpuTrigger) start(ctx context.Context, host component.Host) error {
	if err := p.remember(ctx, host); err != nil {
		return err
	}
	if hot := hotunitsextension.Find(host, p.log); hot != nil {
		p.hot = &hotList{units: p.units, to: hot.Publisher(p.id)}
		p.eval.hot = p.hot
	}
	if tree, err := cgroup.Open(p.cfg.RootPath); err == nil {
		if err := p.watch(tree); err != nil {
			return err
		}
	} else {
		err = fmt.Errorf("no unit can be watched, and profiles are handled as unmatched (%s): %w", p.cfg.Unmatched, err)
		p.log.Warn("cannot read control groups", zap.Error(err))
		componentstatus.ReportStatus(host, componentstatus.NewRecoverableErrorEvent(err))
	}
	if server := p.cfg.manual(); server != nil {
		p.manual = manual.NewServer(*server, p.cfg.manualDuration(), p.fire, p.log)
		return p.manual.Start(ctx, host, p.telemetry)
	}
	return nil
}

// remember takes up cooldowns and budgets where the last run left them.
func (p *cpuTrigger) remember(ctx context.Context, host component.Host) error {
	if p.cfg.Storage == nil {
		return nil
	}
	client, err := openStorage(ctx, host, *p.cfg.Storage, p.id)
	if err != nil {
		return err
	}
	p.memory = newMemory(client, p.log)
	if last, ok := p.memory.load(ctx); ok {
		p.units.Restore(last, p.now())
	}
	p.eval.save = func() { p.memory.save(p.units.Snapshot(p.now())) }
	return nil
}

// watch starts what looks at the host.
func (p *cpuTrigger) watch(tree *cgroup.Tree) error {
	files, err := monitor.NewSource(tree, monitor.Options{
		MaxOpenFiles:         openFiles(procfs.OpenFileLimit()),
		Least:                p.cfg.least(),
		MaxSwitchesPerSecond: p.cfg.MaxSwitchesPerSecond,
		CPUWeightFormula:     p.cfg.CPUWeightFormula,
	})
	if err != nil {
		return fmt.Errorf("read the CPU time of units: %w", err)
	}
	p.gate.host = identify.NewHost(p.cfg.RootPath, tree, p.units.Watched, p.now)
	c := p.newCollector(tree, hostSource{files})
	d := &discoverer{
		tree: tree, scope: p.cfg.Scope, units: p.units, ttl: p.cfg.UnitTTL,
		every: min(scanEvery, max(time.Second, p.cfg.EvaluationInterval)), now: p.now, log: p.log,
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.sender.Start()
	scanned := make(chan struct{})
	p.running.Go(func() { p.discover(ctx, d, scanned) })
	p.running.Go(func() { p.collect(ctx, c, tree, scanned) })
	p.running.Go(func() { p.evaluate(ctx) })
	return nil
}

func (p *cpuTrigger) newCollector(tree *cgroup.Tree, source source) *collector {
	c := &collector{
		units: p.units, source: source, monitors: p.cfg.monitors(), interval: p.cfg.CollectionInterval,
		now: p.now, log: p.log, counters: p.counters, debug: p.eval.debug, hot: p.hot, ages: p.cfg.MinAge > 0,
		openTimes: func(u *unit) *userTimes { return openUserTimes(tree, u) },
	}
	if tree != nil {
		c.mode = tree.Mode().String()
	}
	least := p.cfg.least()
	for _, m := range c.monitors {
		c.warm = append(c.warm, warmAt(m, least))
	}
	return c
}

// warmAt is the value of a monitor from which on a unit is looked at more
// closely. What is the same for all units makes none warm by itself, and a
// gauge, which may stay where it is for days, not long before its threshold.
func warmAt(name string, least map[string]float64) float64 {
	warm := math.Inf(1)
	for _, k := range monitor.Kinds() {
		switch threshold, used := least[k.Name]; {
		case !used:
		case k.Guard == name:
			warm = min(warm, warmFrom*k.GuardAtLeast)
		case k.Name != name || k.Guard != "":
		case k.Gauge:
			warm = min(warm, warmGaugeFrom*threshold)
		default:
			warm = min(warm, warmFrom*threshold)
		}
	}
	return warm
}

// discover scans until it is cancelled; scanned is closed after the first time.
func (p *cpuTrigger) discover(ctx context.Context, d *discoverer, scanned chan<- struct{}) {
	for first := true; ; first = false {
		start := time.Now()
		d.scan()
		if first {
			close(scanned)
		}
		if !sleep(ctx, d.wait(time.Since(start))) {
			return
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// collect reads until it is cancelled: at once when units are known, and then at
// each interval.
func (p *cpuTrigger) collect(ctx context.Context, c *collector, tree *cgroup.Tree, scanned <-chan struct{}) {
	defer c.close()
	tick := time.NewTicker(p.cfg.CollectionInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-scanned:
			scanned = nil
			c.collect()
			p.log.Info("cgroup mode", describe(tree, len(c.watched), c.unlimited())...)
		case <-tick.C:
			c.collect()
		}
	}
}

// evaluate decides at each interval until it is cancelled, and reports what
// happened in between.
func (p *cpuTrigger) evaluate(ctx context.Context) {
	tick := time.NewTicker(p.cfg.EvaluationInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.units.changed:
			p.eval.flush()
		case <-tick.C:
			p.eval.evaluate()
		}
	}
}

// Shutdown stops the goroutines, waits for them, and closes the gates. It may be
// called without Start, and again.
func (p *cpuTrigger) Shutdown(ctx context.Context) error {
	if p.closed.Swap(true) {
		return nil
	}
	var err error
	if p.manual != nil {
		err = p.manual.Shutdown(ctx)
	}
	if p.cancel != nil {
		p.cancel()
	}
	p.running.Wait()
	p.sender.Shutdown(ctx)
	p.units.Close(p.now())
	p.eval.flush()
	p.hot.close()
	if p.memory != nil {
		err = errors.Join(err, p.memory.close(ctx, p.units.Snapshot(p.now())))
	}
	p.counters.Shutdown()
	return err
}

var errShutdown = errors.New("cpu_trigger was shut down: profiles are no longer taken")
