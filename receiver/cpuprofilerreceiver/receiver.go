// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receiverhelper"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/configlog"
	"github.com/hotprofile/hotprofile/internal/hostid"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/attach"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/cputime"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/metadata"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/dotnet"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/offcpu"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/oncpu"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/symbolizer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

var errNeedsLinux = errors.New("cpu_profiler needs Linux: it samples with perf events; leave it out of the pipelines of collectors on other systems")

// profiler is the receiver: it owns the samplers, the buffers and the exporter.
type profiler struct {
	cfg       *Config
	settings  receiver.Settings
	next      xconsumer.Profiles
	obs       *receiverhelper.ObsReport
	telemetry *metadata.TelemetryBuilder
	logger    *zap.Logger

	// All of these are nil while it does not run.
	symbols  *symbolizer.Symbolizer
	sampler  *oncpu.Sampler
	offCPU   *offcpu.Sampler
	stopHot  func() // ends the watch of hot units
	allocs   *allocations
	dotnet   *dotnetServer
	pprof    *pprofPullers
	exporter *exporter

	// meter is the CPU time that samples of running threads cost.
	meter *cputime.Meter

	unwinding *unwind.Cache // also nil where no copies of stacks are walked
	roots     *unwind.Cache // what threads begin with in files that have no names
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
	return &profiler{cfg: cfg, settings: set, next: next, obs: obs, telemetry: telemetry, logger: set.Logger, meter: new(cputime.Meter)}, nil
}

// Start begins to sample. What is not permitted is no error, since it may be
// permitted later: it is the component's status until then.
func (p *profiler) Start(_ context.Context, host component.Host) error {
	if runtime.GOOS != "linux" {
		return errNeedsLinux
	}
	if effective, err := configlog.Map(p.cfg); err == nil {
		p.logger.Debug("Continuous profiling configuration:", zap.Any("cpu_profiler", effective))
	}
	if !p.cfg.CPU.Enabled {
		if !p.cfg.Dotnet.HasValue() && len(p.cfg.PprofEndpoints) == 0 && !p.cfg.OffCPU.HasValue() && !p.cfg.Allocations.HasValue() {
			p.logger.Warn("nothing is sampled: cpu.enabled is false, and no other sampler is configured")
			return nil
		}
		p.logger.Info("Running threads are not sampled: cpu.enabled is false")
	}
	if at, err := os.Stat(p.cfg.RootPath); err != nil {
		return fmt.Errorf("root_path: the host's root has to be mounted there: %w", err)
	} else if !at.IsDir() {
		return fmt.Errorf("root_path: the host's root has to be mounted there: %s is no directory", p.cfg.RootPath)
	}
	root, note := processRoot(p.cfg.RootPath, os.Getpid())
	tree, err := cgroup.Open(root)
	if err != nil {
		// Processes are sampled all the same, without their cgroups.
		p.logger.Warn("cgroups cannot be read", zap.Error(err))
	}
	if err := p.start(host, place{
		root: root, note: note, tree: tree,
		hostName: hostid.Best(hostid.Names(p.cfg.RootPath)),
		hostID:   hostid.Best(hostid.IDs(p.cfg.RootPath)),
	}); err != nil {
		return errors.Join(err, p.stop(context.Background()))
	}
	return nil
}

// start joins the parts that are configured and starts them, in the order of the
// way of the samples from its end. What was started before a fault is left to
// stop.
func (p *profiler) start(host component.Host, at place) error {
	counters := &counters{telemetry: p.telemetry, spent: p.meter.Total}
	var wakes []func() // filled before anything is in the buffer
	buffer := newBuffer(int(p.cfg.BufferSize), systemClock{}, func() {
		for _, wake := range wakes {
			wake()
		}
	})
	buffer.lost = func(t *samples.Type) { counters.left(bufferFull, t.Sampler, 1) }
	if p.cfg.CPU.Enabled || p.cfg.OffCPU.HasValue() || p.cfg.Allocations.HasValue() {
		var err error
		if p.symbols, err = symbolizer.New(symbolizer.Config{
			Root: at.root,
			// Half of them are for perf events, and the rest of the collector needs some.
			MaxObjects: max(1, min(symbolizer.DefaultMaxObjects, procfs.OpenFileLimit()/4)),
			Logger:     p.logger,
			Meter:      p.meter,
		}); err != nil {
			return fmt.Errorf("start the symbolizer: %w", err)
		}
		counters.symbols = p.symbols.Counters
	}
	if p.cfg.CPU.Enabled || p.cfg.OffCPU.HasValue() {
		p.unwinding, p.roots = p.newUnwinding(at), p.newRoots(at)
	}
	var sampler *oncpu.Sampler
	if p.cfg.CPU.Enabled {
		var err error
		if sampler, err = p.newSampler(host, at, buffer); err != nil {
			return err
		}
		wakes = append(wakes, sampler.Wake)
		counters.sampler = sampler.Stats
	} else {
		buffer.ReadUpTo(attach.Idle)
	}
	var offCPU *offcpu.Sampler
	if p.cfg.OffCPU.HasValue() {
		var err error
		if offCPU, p.stopHot, err = p.newOffCPU(at, buffer.another(), hotUnits(host, p.logger)); err != nil {
			return err
		}
		wakes = append(wakes, offCPU.Wake)
		counters.offCPU = offCPU.Stats
	}
	if p.cfg.Allocations.HasValue() {
		var err error
		if p.allocs, err = p.newAllocations(at, hotUnits(host, p.logger)); err != nil {
			return err
		}
		counters.allocs = p.allocs.sampler.Stats
	}
	var intake *dotnet.Intake
	identifier := processes.NewIdentifier(at.root, at.tree)
	if p.cfg.Dotnet.HasValue() {
		intake = p.newIntake(at, buffer, identifier.Identify)
		counters.dotnet = intake.Stats
	}
	if p.roots != nil {
		counters.copies = p.unwindStats(p.unwinding, p.roots)
	}
	p.exporter = &exporter{
		interval: p.cfg.ExportInterval,
		timeout:  p.cfg.ExportTimeout,
		patience: maxPatience,
		buffer:   buffer,
		namer:    names{p.symbols, p.roots},
		builder: otlpprofiles.NewBuilder(otlpprofiles.Options{
			ScopeName:    metadata.ScopeName,
			ScopeVersion: p.settings.BuildInfo.Version,
		}),
		next:     p.next,
		obs:      p.obs,
		counters: counters,
		meter:    p.meter,
		logger:   p.logger,
	}
	if p.allocs != nil {
		p.exporter.allocations, p.exporter.gather = p.allocs.buffer, p.allocs.sampler.Flush
	}
	p.exporter.start()
	p.sampler = sampler
	if err := p.observe(buffer, sampler, offCPU, p.allocs); err != nil {
		return err
	}
	if sampler != nil {
		if err := sampler.Start(); err != nil {
			return err
		}
	}
	if offCPU != nil {
		p.offCPU = offCPU
		offCPU.Start()
	}
	if p.allocs != nil {
		p.allocs.start()
	}
	if len(p.cfg.PprofEndpoints) > 0 {
		var err error
		if p.pprof, err = p.newPprof(context.Background(), host, at, buffer, counters, hotUnits(host, p.logger)); err != nil {
			return err
		}
		p.pprof.start()
	}
	if intake == nil {
		return nil
	}
	var err error
	p.dotnet, err = startDotnet(context.Background(), host, p.settings.TelemetrySettings, p.cfg.Dotnet.Get(), intake, identifier.Identify)
	return err
}

func (p *profiler) newIntake(at place, sink dotnet.Sink, identify func(pid int) (processes.Identity, error)) *dotnet.Intake {
	cfg := p.cfg.Dotnet.Get()
	return dotnet.New(dotnet.Config{
		Sink:         sink,
		Identify:     identify,
		HostName:     at.hostName,
		HostID:       at.hostID,
		ThreadName:   slices.Contains(p.cfg.ThreadAttributes, attr.ThreadName),
		ExportThread: cfg.IncludeExportThread,
		MaxBody:      cfg.ServerConfig.MaxRequestBodySize,
		RetryAfter:   p.cfg.ExportInterval,
		Logger:       p.logger,
		Now:          time.Now,
	})
}

// place is where samplers read about processes, and which host that is.
type place struct {
	root             string
	note             string       // why that is not root_path; empty where it is
	tree             *cgroup.Tree // nil where cgroups cannot be read
	hostName, hostID string
}

// ownPID names the collector as its own pid namespace numbers it, as perf does.
func ownPID() int { return os.Getpid() }

// known is what tables of processes need to know, and the targets.
func (p *profiler) known(at place) (processes.Config, []processes.Target, error) {
	targets := make([]processes.Target, 0, len(p.cfg.Targets))
	for _, t := range p.cfg.Targets {
		targets = append(targets, t.target())
	}
	wanted, err := processes.NewMatcher(targets, ownPID())
	return processes.Config{
		Root:     at.root,
		Tree:     at.tree,
		Track:    p.symbols.Track, // which no sampler outlives
		Wanted:   wanted,
		HostName: at.hostName,
		HostID:   at.hostID,
	}, targets, err
}

func (p *profiler) kernelStacks() attach.KernelStacks {
	switch p.cfg.KernelStacks {
	case KernelStacksTrue:
		return attach.KernelDemanded
	case KernelStacksFalse:
		return attach.KernelNever
	default:
		return attach.KernelAuto
	}
}

// newSampler joins the sampler's parts.
func (p *profiler) newSampler(host component.Host, at place, sink oncpu.Sink) (*oncpu.Sampler, error) {
	known, targets, err := p.known(at)
	if err != nil {
		return nil, err
	}
	symbols := p.symbols
	finder, err := attach.NewTargetFinder(known, targets, ownPID())
	if err != nil {
		return nil, err
	}
	return oncpu.New(oncpu.Config{
		Stacks:            p.newStacks(samples.OnCPU.Sampler),
		Finder:            finder,
		Table:             processes.NewTable(known),
		Sink:              sink,
		Frequency:         p.cfg.Frequency,
		MaxOverhead:       float64(p.cfg.MaxOverhead) / 100,
		Window:            max(2*p.cfg.ExportInterval, minOverheadWindow),
		Meter:             p.meter,
		MaxEvents:         p.cfg.MaxPerfEvents,
		DiscoveryInterval: p.cfg.DiscoveryInterval,
		Kernel:            p.kernelStacks(),
		ThreadName:        slices.Contains(p.cfg.ThreadAttributes, attr.ThreadName),
		ThreadID:          slices.Contains(p.cfg.ThreadAttributes, attr.ThreadID),
		Logger:            p.logger,
		Status: func(err error) {
			event := componentstatus.NewEvent(componentstatus.StatusOK)
			if err != nil {
				event = componentstatus.NewRecoverableErrorEvent(err)
				p.logger.Warn("nothing can be sampled", zap.Error(err))
			}
			componentstatus.ReportStatus(host, event)
		},
		Notes: func(rights perfevent.Rights) (notes []string) {
			if at.note != "" {
				notes = append(notes, at.note)
			}
			if at.tree != nil && at.tree.Limited() != "" {
				notes = append(notes, at.tree.Limited())
			}
			if status, err := os.ReadFile("/proc/self/status"); err == nil && rights.HostWide == nil {
				notes = append(notes, hidden(status)...)
			}
			if err := symbols.KernelSymbols(); err != nil && rights.Kernel == nil {
				notes = append(notes, err.Error())
			}
			return notes
		},
		Now:   systemClock{}.Monotonic,
		Probe: perfevent.Probe,
	}), nil
}

// observe has the gauges read what there is when they are asked; s, off and a are
// nil where such samples are not taken.
func (p *profiler) observe(b *buffer, s *oncpu.Sampler, off *offcpu.Sampler, a *allocations) error {
	limit := int(p.cfg.BufferSize)
	err := p.telemetry.RegisterCPUProfilerBufferUsageCallback(func(_ context.Context, o metric.Int64Observer) error {
		o.Observe(int64(b.usage(limit)), inBuffer("samples"))
		if a != nil {
			o.Observe(int64(a.buffer.usage(a.limit)), inBuffer("allocations"))
		}
		return nil
	})
	err = errors.Join(err, p.telemetry.RegisterCPUProfilerTargetsCallback(func(_ context.Context, o metric.Int64Observer) error {
		if s != nil {
			o.Observe(int64(s.Stats().Targets), bySampler(samples.OnCPU.Sampler))
		}
		if off != nil {
			o.Observe(int64(off.Stats().Targets), bySampler(samples.OffCPU.Sampler))
		}
		if a != nil {
			o.Observe(int64(a.sampler.Stats().Processes), bySampler(samples.AllocSpace.Sampler))
		}
		return nil
	}))
	if s == nil {
		return err
	}
	return errors.Join(
		err,
		p.telemetry.RegisterCPUProfilerFrequencyCallback(func(_ context.Context, o metric.Float64Observer) error {
			o.Observe(s.Stats().Frequency)
			return nil
		}),
	)
}

// Shutdown stops sampling, hands over what is left, and waits. A component that
// does not return from that within export_timeout has its context cancelled; one
// that ignores even this is waited for as long as ctx lasts, and no longer than
// maxPatience beyond that.
func (p *profiler) Shutdown(ctx context.Context) error { return p.stop(ctx) }

func (p *profiler) stop(ctx context.Context) error {
	if p.dotnet != nil {
		p.dotnet.stop(ctx)
		p.dotnet = nil
	}
	if p.pprof != nil {
		p.pprof.stop()
		p.pprof = nil
	}
	if p.stopHot != nil {
		p.stopHot()
		p.stopHot = nil
	}
	if p.allocs != nil {
		p.allocs.stop()
		p.allocs = nil
	}
	if p.offCPU != nil {
		p.offCPU.Stop()
		p.offCPU = nil
	}
	if p.sampler != nil {
		p.sampler.Stop()
		p.sampler = nil
	}
	var err error
	if p.exporter != nil {
		err = p.exporter.shutdown(ctx)
		p.exporter = nil
	}
	if p.unwinding != nil {
		p.unwinding.Close()
		p.unwinding = nil
	}
	if p.roots != nil {
		p.roots.Close()
		p.roots = nil
	}
	if p.symbols != nil {
		p.symbols.Close()
		p.symbols = nil
	}
	p.telemetry.Shutdown()
	return err
}

// names gives stacks their names and judges by these whether they are whole, or,
// where a stack ends in a function without a name, by what its file says of that.
type names struct {
	symbols *symbolizer.Symbolizer
	roots   *unwind.Cache // nil where only .NET stacks come
}

func (n names) Name(pid int, s *samples.Stack) {
	for _, l := range s.Locations {
		if !l.Resolved {
			n.symbols.Resolve(pid, l)
		}
	}
	processes.MarkTruncated(s)
	if end := processes.NamelessEnd(s); end != nil && n.roots != nil && n.roots.Root(end) {
		s.Truncated = false
	}
}

// systemClock is the clock of perf records.
type systemClock struct{}

func (systemClock) Monotonic() int64 { return time.Now().UnixNano() - perfevent.ClockOffset() }
func (systemClock) Offset() int64    { return perfevent.ClockOffset() }
