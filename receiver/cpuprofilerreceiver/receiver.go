// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receiverhelper"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/configlog"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/metadata"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/dotnet"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/pprof"
)

// samplers lists the samplers in the order in which they start.
func samplers(cfg *Config) []sampler.Factory {
	return append(perfSamplers(cfg), pprof.Factory(cfg.PprofEndpoints), dotnet.Factory(cfg.Dotnet))
}

// profiler is the receiver. It owns the samplers, their buffers and the emitter.
type profiler struct {
	cfg       *Config
	settings  receiver.Settings
	next      xconsumer.Profiles
	obs       *receiverhelper.ObsReport
	telemetry *metadata.TelemetryBuilder
	logger    *zap.Logger
	// goos is the operating system. Tests can change it.
	goos string
	// exportTimeout is the deadline for one batch. Tests can change it.
	exportTimeout time.Duration

	// parts contains the shared part of the samplers that use perf events, the emitter, and
	// the samplers. The parts are in the order in which they start.
	parts []sampler.Sampler
	// meters measure the CPU time of profiling. spent is the CPU time that was already
	// added to the metric, by kind of work.
	meters *sampler.Meters
	spent  map[string]time.Duration
}

func newReceiver(set receiver.Settings, cfg *Config, next xconsumer.Profiles) (*profiler, error) {
	telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	obs, err := receiverhelper.NewObsReport(receiverhelper.ObsReportSettings{
		ReceiverID:             set.ID,
		ReceiverCreateSettings: set,
	})
	if err != nil {
		return nil, err
	}
	return &profiler{
		cfg: cfg, settings: set, next: next, obs: obs, telemetry: telemetry, logger: set.Logger,
		goos: runtime.GOOS, exportTimeout: exportTimeout, meters: new(sampler.Meters), spent: make(map[string]time.Duration),
	}, nil
}

// Start starts sampling. A missing permission is not an error, because it may be granted
// later. Until then, the component's status reports the missing permission.
func (p *profiler) Start(ctx context.Context, host component.Host) error {
	if effective, err := configlog.Map(p.cfg); err == nil {
		p.logger.Debug("Continuous profiling configuration:", zap.Any("cpu_profiler", effective))
	}
	enabled := p.enabled()
	if len(enabled) == 0 {
		return nil
	}
	info, err := sampler.NewHostInfo(p.cfg.RootPath, p.logger)
	if err != nil {
		return err
	}
	err = p.build(enabled, host, info)
	for i := 0; i < len(p.parts) && err == nil; i++ {
		err = p.parts[i].Start(ctx)
	}
	if err != nil {
		return errors.Join(err, p.Shutdown(context.Background()))
	}
	return nil
}

// enabled returns the samplers that are configured and available on this system. It logs
// why configured samplers are not available.
func (p *profiler) enabled() (enabled []sampler.Factory) {
	var unavailable []string
	for _, f := range samplers(p.cfg) {
		switch {
		case !f.Enabled:
		case f.PerfEvents && p.goos != "linux":
			unavailable = append(unavailable, f.Key)
		default:
			enabled = append(enabled, f)
		}
	}
	if len(unavailable) > 0 {
		p.logger.Warn("samplers that need Linux perf events are not available", zap.String("os", p.goos), zap.Strings("samplers", unavailable))
	}
	switch {
	case p.cfg.CPU.Enabled:
	case len(enabled)+len(unavailable) == 0:
		p.logger.Warn("nothing is sampled: cpu.enabled is false, and no other sampler is configured")
	default:
		p.logger.Info("running threads are not sampled: cpu.enabled is false")
	}
	return enabled
}

// build creates the parts. If it returns an error, the parts created before must still be
// stopped.
func (p *profiler) build(enabled []sampler.Factory, host component.Host, info sampler.HostInfo) error {
	counters := &sampler.Counters{TelemetryBuilder: p.telemetry}
	status := &sampler.Status{Host: host}
	shared := &sampler.Shared{
		Component: p.settings.TelemetrySettings, Host: host, Status: status, Logger: p.logger,
		Counters: counters, HostInfo: info, HotUnits: hotUnits(host, p.logger),
		DiscoveryInterval: p.cfg.DiscoveryInterval, ExportInterval: p.cfg.ExportInterval,
		ThreadName: slices.Contains(p.cfg.ThreadAttributes, attr.ThreadName),
		ThreadID:   slices.Contains(p.cfg.ThreadAttributes, attr.ThreadID),
		Targets:    p.cfg.Targets,
	}
	var names namer = noNames{}
	if slices.ContainsFunc(enabled, func(f sampler.Factory) bool { return f.PerfEvents }) {
		var err error
		if names, err = p.addPerf(shared); err != nil {
			return err
		}
	}
	emitter := p.newEmitter(counters, names)
	p.parts = append(p.parts, emitter)
	main := buffer.New(int(p.cfg.BufferSize), buffer.SystemClock{})
	main.ReadUpTo(buffer.Idle) // until a sampler reads records
	emitter.add("samples", main, nil)

	shared.Buffer, shared.BufferSize, shared.AddBuffer = main, int(p.cfg.BufferSize), emitter.add
	if slices.ContainsFunc(p.cfg.PprofEndpoints, func(e pprof.Config) bool { return !e.KeepSampled }) {
		shared.Sampled = map[string]*sampler.Sampled{sampler.PprofCPU: sampler.NewSampled(), sampler.PprofAllocs: sampler.NewSampled()}
	}
	for _, f := range enabled {
		shared.Weights += f.Weight
	}
	missing := perftargets.NewMissing(p.logger, p.cfg.DiscoveryInterval)
	for _, f := range enabled {
		own := *shared
		own.Weight = f.Weight
		if f.PerfEvents {
			own.Missing, missing = missing, nil
		}
		made, err := f.New(&own)
		if err != nil {
			return err
		}
		p.parts = append(p.parts, made)
	}
	return p.telemetry.RegisterCPUProfilerBufferUsageCallback(func(_ context.Context, o metric.Int64Observer) error {
		for _, s := range emitter.sources {
			o.Observe(int64(s.Usage()), sampler.With("buffer", s.name))
		}
		return nil
	})
}

func (p *profiler) newEmitter(counters *sampler.Counters, names namer) *emitter {
	return &emitter{
		profiler: p,
		patience: maxPatience,
		full:     make(chan struct{}, 1),
		names:    names,
		builder: otlpprofiles.NewBuilder(otlpprofiles.Options{
			ScopeName:    metadata.ScopeName,
			ScopeVersion: p.settings.BuildInfo.Version,
		}),
		counters: counters,
	}
}

// record adds the counts since the last call to the telemetry.
func (p *profiler) record(ctx context.Context) {
	for work, meter := range map[string]*cputime.Meter{"samples": &p.meters.Samples, "names": &p.meters.Names, "files": &p.meters.Files} {
		spent := meter.Total()
		p.telemetry.CPUProfilerCPUTime.Add(ctx, (spent - p.spent[work]).Seconds(), sampler.With("work", work))
		p.spent[work] = spent
	}
	for _, part := range p.parts {
		part.Record(ctx)
	}
}

// Shutdown stops sampling, emits the remaining samples, and waits until all parts have
// stopped. If a component does not return within exportTimeout, its context is
// cancelled. If the component still does not return, Shutdown waits until ctx ends,
// but at most maxPatience longer.
func (p *profiler) Shutdown(ctx context.Context) (err error) {
	for _, part := range slices.Backward(p.parts) {
		err = errors.Join(err, part.Stop(ctx))
	}
	p.parts = nil
	p.telemetry.Shutdown()
	return err
}

// hotUnits returns the hot_units extension of a host, or nil if there is none.
func hotUnits(host component.Host, log *zap.Logger) *hotunitsextension.HotUnits {
	if host == nil {
		return nil
	}
	return hotunitsextension.Find(host, log)
}
