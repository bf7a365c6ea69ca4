// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/processor"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/configlog"
	"github.com/hotprofile/hotprofile/internal/hostid"
	"github.com/hotprofile/hotprofile/internal/identify"
	"github.com/hotprofile/hotprofile/internal/monitor"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/trigger"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/attributes"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/collect"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/counters"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/manual"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/peers"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/recorder"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/requests"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/routing"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/units"
)

// cpuTrigger is the component. Separate goroutines take readings, read connections,
// evaluate policies, discover units, and look up the units of requests. Two more
// goroutines read policies_from and write to the storage. Another four goroutines send
// recorded profiles.
type cpuTrigger struct {
	id        component.ID
	telemetry component.TelemetrySettings
	cfg       *Config
	log       *zap.Logger
	now       func() time.Time
	counters  *counters.Counters
	recorder  *recorder.Recorder
	units     *units.Set
	reporter  *reporter
	router    *routing.Router
	sender    *recorder.Sender

	manual *manual.Server   // nil: the server is off
	hot    *collect.HotList // nil: no extension needs the hot units

	peers       atomic.Pointer[peers.Follower] // nil: connections are not read
	requests    *requests.Intake               // observes the spans and metrics that pass through
	collector   *collect.Collector             // nil if control groups cannot be read
	reloader    *reloader                      // nil: policies do not change
	reloadEvery time.Duration                  // reloadInterval, except in tests
	health      *health                        // nil before the start
	inForce     atomic.Pointer[inForce]        // policies

	save        func()            // saves cooldowns and budgets; nil without a storage
	forgotten   trigger.Forgotten // counts at the last evaluation
	forgottenAt time.Time         // when the last cooldown was forgotten

	// observing and serving stop the running parts, each list in reverse order. The parts
	// in observing can open gates, so they are stopped before the gates close. The parts
	// in serving report closed gates, so they are stopped after the gates have closed.
	observing, serving parts
	closed             atomic.Bool
}

// parts contains functions that stop parts of the component.
type parts []func(context.Context) error

func (p *parts) add(stop func()) {
	*p = append(*p, func(context.Context) error { stop(); return nil })
}

func (p *parts) stop(ctx context.Context) (err error) {
	for _, stop := range slices.Backward(*p) {
		err = errors.Join(err, stop(ctx))
	}
	return err
}

// inForce contains the policies in force.
type inForce struct {
	cfg     *Config // the configuration with these policies
	version string  // empty: the policies of the configuration
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
	selectors, err := units.NewSelectors(cfg.globs())
	if err != nil {
		return nil, err
	}
	metrics, err := counters.New(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	p := &cpuTrigger{id: set.ID, telemetry: set.TelemetrySettings, cfg: cfg, log: set.Logger, now: now, counters: metrics, reloadEvery: reloadInterval}
	p.inForce.Store(&inForce{cfg: cfg})
	lock := new(sync.Mutex)
	p.recorder = recorder.New(recorder.Config{
		PreTrigger: cfg.PreTrigger, PerUnit: int(max(cfg.PreTriggerMemory/8, minPreTriggerMemory)), Memory: int(cfg.PreTriggerMemory), Lock: lock,
	}, metrics, now())
	p.units = units.New(units.Config{
		Engine: engine, Recorder: p.recorder, Lock: lock, Selectors: selectors,
		ByService: cfg.CooldownBy == CooldownByService || cfg.Budgets.MaxTriggersPerServicePerHour > 0,
	})
	p.requests = requests.New(requests.Config{
		Scope: cfg.Scope, TTL: unitTTL, See: p.units.See, Counters: metrics, Now: now, Log: set.Logger,
	})
	p.router = &routing.Router{
		Requests: p.requests,
		Scope:    cfg.Scope, PassUnmatched: cfg.Unmatched == UnmatchedPass, Remove: attributes.NewFilter(cfg.KeepProcessAttributes), OnResource: cfg.ResourceAttributes,
		Units: p.units, Next: next,
		Counters: metrics, Now: now, Log: set.Logger,
	}
	p.sender = recorder.NewSender(p.recorder, set.Logger, p.router.SendRecorded)
	if err := p.requests.SetConditions(cfg.conditions()); err != nil {
		return nil, err
	}
	p.reporter = &reporter{log: set.Logger, counters: metrics, requests: p.requests}
	if err := metrics.Observe(p.units.Count, p.recorder.Held, p.policies); err != nil {
		return nil, err
	}
	return p, nil
}

// newID returns a random trigger id, which is unique among all collectors.
func newID(random io.Reader) string {
	var b [8]byte
	_, _ = io.ReadFull(random, b[:]) // rand.Reader never fails
	return hex.EncodeToString(b[:])
}

// Capabilities declares that batches are modified, because profiles are stamped in place.
func (*cpuTrigger) Capabilities() consumer.Capabilities {
	return consumer.Capabilities{MutatesData: true}
}

// ConsumeProfiles passes on profiles that were captured while their unit's gate was open.
// It records profiles of units whose gate may soon open.
func (p *cpuTrigger) ConsumeProfiles(ctx context.Context, pd pprofile.Profiles) error {
	if !p.closed.Load() {
		return p.router.Consume(ctx, pd)
	}
	var counts counters.Samples
	counts[counters.SampleShutdown] = int64(routing.CountSamples(pd))
	p.counters.AddSamples(ctx, &counts)
	return errShutdown
}

// Start starts the component. If control groups cannot be read, the component still runs,
// but all profiles are unmatched.
func (p *cpuTrigger) Start(ctx context.Context, host component.Host) error {
	if effective, err := configlog.Map(p.cfg); err == nil {
		p.log.Debug("Continuous profiling configuration:", zap.Any("cpu_trigger", effective))
	}
	if err := p.start(ctx, host); err != nil {
		return errors.Join(err, p.Shutdown(ctx))
	}
	return nil
}

func (p *cpuTrigger) start(ctx context.Context, host component.Host) error {
	p.health = newHealth(host)
	if p.cfg.PoliciesFrom.isSet() {
		var err error
		if p.reloader, err = p.newReloader(ctx, host); err != nil {
			return err
		}
		if err := p.reloader.first(ctx); err != nil {
			return err
		}
	}
	if err := p.restore(ctx); err != nil {
		return err
	}
	if hot := hotunitsextension.Find(host, p.log); hot != nil {
		p.hot = collect.NewHotList(p.units, hot.Publisher(p.id))
		p.publishTo(hot)
		p.units.SetHost(hostid.Best(hostid.Names(p.cfg.RootPath)))
		if path := p.cfg.PoliciesFrom.File; path != "" {
			p.serving.add(hot.AddPolicyFile(p.policyFile(path)))
		}
	}
	if p.reloader == nil {
		p.warnDoubtful(p.cfg)
	}
	var tree *cgroup.Tree
	var err error
	if !onWindows {
		tree, err = cgroup.Open(p.cfg.RootPath)
	}
	if err == nil {
		if err := p.watch(tree); err != nil {
			return err
		}
	} else {
		err = fmt.Errorf("no unit can be watched, and profiles are handled as unmatched (%s): %w", p.cfg.Unmatched, err)
		p.log.Warn("cannot read control groups", zap.Error(err))
		p.health.set(cgroupsFault, err)
	}
	if p.reloader != nil {
		p.observing.add(p.reloader.start())
	}
	if server := p.cfg.manual(); server != nil {
		p.manual = p.newManual(server, tree)
		p.observing = append(p.observing, p.manual.Shutdown)
		if err := p.manual.Start(ctx, host, p.telemetry); err != nil {
			return err
		}
		return p.counters.ObserveManual(p.manual.Stats)
	}
	return nil
}

// doubt is a threshold that is almost certainly a mistake.
type doubt struct {
	policy, monitor, why string
	threshold            float64
}

// doubtsOf returns the thresholds of enabled policies that are almost certainly mistakes.
func doubtsOf(cfg *Config) (all []doubt) {
	ofLimit := []string{monitor.CPUUtilization, monitor.CPUBottleneck, monitor.CPUBusiestThread, monitor.CPURequestUtilization, monitor.HostCPUUtilization, monitor.MemoryUtilization}
	for _, policy := range cfg.Policies {
		for _, item := range policy.AnyOf {
			if item.Threshold == nil || !policy.Enabled {
				continue
			}
			why, t := "", *item.Threshold
			switch cpus := runtime.NumCPU(); {
			case item.Monitor == monitor.CPUUsage && t >= float64(cpus):
				why = fmt.Sprintf("it is in cores, and this host has %d, so no unit exceeds it", cpus)
			case slices.Contains(ofLimit, item.Monitor) && t > 0 && t < 1:
				why = fmt.Sprintf("it is in percent, so nearly every unit exceeds it: did you mean %v?", 100*t)
			default:
				continue
			}
			all = append(all, doubt{policy.Name, item.Monitor, why, t})
		}
	}
	return all
}

// warnDoubtful logs a warning for each doubtful threshold. It also logs a warning if
// policies need spans or metrics, but no traces or metrics pipeline contains this
// component, because the conditions of these policies never hold.
func (p *cpuTrigger) warnDoubtful(cfg *Config) {
	if signals := cfg.instance.signals; len(cfg.conditions()) > 0 && signals["profiles"] && !signals["traces"] && !signals["metrics"] {
		p.log.Warn("policies need spans or metrics, and no traces or metrics pipeline has this component", zap.Stringer("component", p.id))
	}
	for _, d := range doubtsOf(cfg) {
		p.log.Warn("a threshold is probably a mistake", zap.String("policy", d.policy),
			zap.String("monitor", d.monitor), zap.Float64("threshold", d.threshold), zap.String("why", d.why))
	}
}

// setPolicies puts a configuration's policies in force. If it fails, no policy changes.
func (p *cpuTrigger) setPolicies(next *Config, version string) error {
	before := p.inForce.Load().cfg
	changes := changesOf(before, next)
	if !changes.none() {
		selectors, err := units.NewSelectors(next.globs())
		if err != nil {
			return err
		}
		if err := p.requests.SetConditions(next.conditions()); err != nil {
			return err
		}
		core := next.trigger(next.enabled())
		if err := p.units.SetPolicies(core.Monitors, core.Policies, selectors, p.now()); err != nil {
			return errors.Join(err, p.requests.SetConditions(before.conditions()))
		}
		if p.collector != nil {
			p.collector.SetMonitors(next.readings())
		}
		p.hot.Publish()
		p.warnDoubtful(next)
	}
	p.inForce.Store(&inForce{cfg: next, version: version})
	if !changes.none() {
		p.reporter.policiesChanged(changes, version, p.reloader.source.String(), p.now())
	}
	return nil
}

// policies returns the number of policies in force, and their version.
func (p *cpuTrigger) policies() (int, string) {
	in := p.inForce.Load()
	return len(in.cfg.enabled()), cmp.Or(in.version, "configuration")
}

// restore restores the cooldowns and budgets of the last run. If the storage cannot be
// opened, restore reports the fault, and the component starts without the storage.
func (p *cpuTrigger) restore(ctx context.Context) error {
	if p.cfg.Storage == nil {
		return nil
	}
	store, err := findStorage(p.health.host, *p.cfg.Storage)
	if err != nil {
		return err
	}
	client, err := openStorage(ctx, store, p.id)
	if err != nil {
		p.log.Error("cooldowns and budgets are not kept", zap.Stringer("storage", *p.cfg.Storage), zap.Error(err))
		p.health.set(storageFault, fmt.Errorf("cooldowns and budgets are not kept across restarts: %w", err))
		return nil
	}
	memory := newMemory(client, p.log)
	p.serving = append(p.serving, func(ctx context.Context) error { return memory.close(ctx, p.units.Snapshot(p.now())) })
	if last, ok := memory.load(ctx); ok {
		p.units.Restore(last, p.now())
	}
	p.save = func() { memory.save(p.units.Snapshot(p.now())) }
	return nil
}

// watch starts the goroutines that watch units.
func (p *cpuTrigger) watch(tree *cgroup.Tree) error {
	connections := p.newFollower(tree)
	p.peers.Store(connections)
	options := monitor.Options{MaxOpenFiles: collect.OpenFiles(procfs.OpenFileLimit())}
	if connections != nil {
		options.TCP = connections.TCP
	}
	files, err := monitor.NewSource(tree, options)
	if err != nil {
		return fmt.Errorf("read the CPU time of units: %w", err)
	}
	host := identify.NewHost(p.cfg.RootPath, tree, p.units.GroupOf, p.now)
	p.router.Host = host
	c := p.newCollector(tree, collect.HostSource(files))
	p.collector = c
	d := &collect.Discoverer{
		Tree: tree, Scope: p.cfg.Scope, Units: p.units, TTL: unitTTL,
		Interval: p.cfg.EvaluationInterval, Now: p.now, Log: p.log, SetClaims: host.SetClaims,
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	p.observing.add(func() { cancel(); running.Wait() })
	p.sender.Start()
	scanned := make(chan struct{})
	running.Go(func() { d.Run(ctx, scanned) })
	running.Go(func() { p.collect(ctx, c, tree, scanned) })
	running.Go(func() { p.runEvaluations(ctx) })
	running.Go(func() { p.requests.Run(ctx, host) })
	if connections != nil {
		running.Go(func() { p.readConnections(ctx, connections) })
	}
	return nil
}

func (p *cpuTrigger) newCollector(tree *cgroup.Tree, source collect.Source) *collect.Collector {
	c := &collect.Collector{
		Units: p.units, Source: source, Requests: p.requests, Interval: p.cfg.CollectionInterval,
		Now: p.now, Log: p.log, Counters: p.counters, Hot: p.hot, Ages: p.cfg.MinAge > 0,
		UserTimes: func(*units.Unit) collect.ReadTimes { return nil },
	}
	c.SetMonitors(p.inForce.Load().cfg.readings())
	if tree != nil {
		c.Mode = string(tree.Mode())
		c.UserTimes = func(u *units.Unit) collect.ReadTimes { return collect.OpenUserTimes(tree, u) }
	}
	return c
}

// collect takes readings at each collection interval until the context ends. It also
// takes readings as soon as the first scan has found the units.
func (p *cpuTrigger) collect(ctx context.Context, c *collect.Collector, tree *cgroup.Tree, scanned <-chan struct{}) {
	defer c.Close()
	tick := time.NewTicker(p.cfg.CollectionInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-scanned:
			scanned = nil
			c.Collect()
			p.logMode(tree, c)
		case <-tick.C:
			c.Collect()
		}
	}
}

// runEvaluations evaluates the policies at each evaluation interval until the context
// ends. Transitions that occur between two evaluations are reported immediately.
func (p *cpuTrigger) runEvaluations(ctx context.Context) {
	tick := time.NewTicker(p.cfg.EvaluationInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.units.Changed():
			p.flush()
		case <-tick.C:
			p.evaluate()
		}
	}
}

// logMode logs the cgroup mode, the mount point of the cgroup tree, and the number of
// units. On Windows, logMode logs the number of processes.
func (p *cpuTrigger) logMode(tree *cgroup.Tree, c *collect.Collector) {
	if tree == nil {
		all, _ := c.Count()
		p.log.Info("processes are watched, because Windows has no control groups", zap.Int("units", all),
			zap.String("default_policies", "without throttled and thread, which need Linux"))
		return
	}
	where := tree.Mount(cgroup.V2Tree)
	if where == "" {
		where = tree.Mount(cgroup.CPU)
	}
	all, unlimited := c.Count()
	fields := []zap.Field{zap.String("mode", string(tree.Mode())), zap.String("tree", where), zap.Int("units", all)}
	if unlimited >= 0 {
		fields = append(fields, zap.Int("units_without_limit", unlimited))
	}
	if limited := tree.Limited(); limited != "" {
		fields = append(fields, zap.String("limited", limited))
	}
	p.log.Info("cgroup mode", fields...)
}

// Shutdown stops the goroutines, waits for them, and closes the gates. It may be called
// before Start, and more than once.
func (p *cpuTrigger) Shutdown(ctx context.Context) error {
	if p.closed.Swap(true) {
		return nil
	}
	err := p.observing.stop(ctx)
	p.sender.Shutdown(ctx)
	p.units.Close(p.now())
	p.flush()
	p.hot.Close()
	err = errors.Join(err, p.serving.stop(ctx))
	p.counters.Shutdown()
	return err
}

// newManual returns the server that opens and closes gates by hand and by alert.
func (p *cpuTrigger) newManual(cfg *manual.Config, tree *cgroup.Tree) *manual.Server {
	p.keepResources() // alerts identify units by these attributes
	duration := p.inForce.Load().cfg.manualDuration()
	alerts := manual.NewAlerts(cfg.Alerts, duration, p.gates, func(o manual.Outcome) { p.counters.AddAlert(string(o)) }, p.now, p.log)
	return manual.NewServer(cfg.HTTP, duration, p.gates, alerts, tree, p.log)
}

var errShutdown = errors.New("cpu_trigger was shut down: it accepts no more profiles")
