// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/exporter/pprofexporter/internal/metadata"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
)

// pprofExporter writes the profiles of a unit and trigger to files.
type pprofExporter struct {
	set       exporter.Settings
	cfg       *Config
	now       func() time.Time
	dir       *directory
	telemetry *metadata.TelemetryBuilder
	host      component.Host

	mu      sync.Mutex // not held while writing
	open    openFiles
	stopped bool
	failing bool // the last write failed, and the status says so

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func newExporter(set exporter.Settings, cfg *Config, now func() time.Time) (*pprofExporter, error) {
	telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	return &pprofExporter{
		set:       set,
		cfg:       cfg,
		now:       now,
		dir:       &directory{path: cfg.Directory, maxFiles: cfg.MaxFiles, maxBytes: cfg.MaxBytes},
		telemetry: telemetry,
		open:      newOpenFiles(),
	}, nil
}

func (e *pprofExporter) start(_ context.Context, host component.Host) error {
	leftovers, rotated, err := e.dir.open()
	if err != nil {
		return fmt.Errorf("pprof exporter cannot write its files: %w", err)
	}
	e.telemetry.PprofFilesRemoved.Add(context.Background(), int64(rotated))
	if leftovers > 0 {
		e.set.Logger.Warn("removed unfinished files of an earlier run", zap.String("directory", e.dir.path), zap.Int("files", leftovers))
	}
	err = e.telemetry.RegisterPprofMemoryCallback(func(_ context.Context, o metric.Int64Observer) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		o.Observe(int64(e.open.memory))
		return nil
	})
	if err != nil {
		return err
	}
	e.host = host
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	e.wg.Go(func() { e.loop(ctx) })
	return nil
}

// shutdown writes the open files.
func (e *pprofExporter) shutdown(ctx context.Context) error {
	e.mu.Lock()
	first := !e.stopped
	e.stopped = true
	done := e.open.all()
	e.mu.Unlock()
	if e.cancel != nil {
		e.cancel()
	}
	e.wg.Wait()
	err := e.write(ctx, done)
	if first {
		e.telemetry.Shutdown()
	}
	return err
}

// loop writes files that are due.
func (e *pprofExporter) loop(ctx context.Context) {
	ticker := time.NewTicker(min(time.Second, e.cfg.IdleTimeout/5))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			_ = e.finishDue(ctx) // write has logged and counted it
		}
	}
}

func (e *pprofExporter) finishDue(ctx context.Context) error {
	e.mu.Lock()
	done := e.open.due(e.now(), e.cfg.IdleTimeout)
	e.mu.Unlock()
	return e.write(ctx, done)
}

// consume adds each profile to its file, and writes the files that this finishes
// before it returns: a slow disk slows the pipeline down. A failure to write them is
// not returned, since the profiles of this request are in memory.
func (e *pprofExporter) consume(ctx context.Context, pd pprofile.Profiles) error {
	done, malformed, err := e.add(pd)
	if err != nil {
		return err
	}
	if malformed > 0 {
		e.telemetry.PprofSamples.Add(ctx, int64(malformed), outcome("malformed"))
		e.set.Logger.Warn("malformed samples dropped: they refer to entries that their dictionary does not have", zap.Int("samples", malformed))
	}
	_ = e.write(ctx, done)
	return nil
}

func (e *pprofExporter) add(pd pprofile.Profiles) (done []finished, malformed int, err error) {
	d := dictionary.NewReader(pd.Dictionary())
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return nil, 0, errors.New("pprof exporter is shut down")
	}
	now := e.now()
	for _, rp := range pd.ResourceProfiles().All() {
		from := sourceOf(rp.Resource().Attributes())
		for _, sp := range rp.ScopeProfiles().All() {
			from.scope = sp.Scope().Name()
			for _, p := range sp.Profiles().All() {
				ended, n := e.open.add(d, from, p, now)
				done = append(done, ended...)
				malformed += n
			}
		}
	}
	return done, malformed, nil
}

// write writes files, and logs and counts what became of each.
func (e *pprofExporter) write(ctx context.Context, done []finished) error {
	var errs []error
	for _, f := range done {
		if f.pprof.events > 0 {
			errs = append(errs, e.writeFile(ctx, f))
		}
	}
	return errors.Join(errs...)
}

func (e *pprofExporter) writeFile(ctx context.Context, f finished) error {
	events := int64(f.pprof.events)
	main := f.main()
	p := f.pprof.finish(main.executable)
	name := fileName(main.service, f.unit, f.at, f.policy, typeName(f.typ))
	var content bytes.Buffer
	if err := p.Write(&content); err != nil { // a buffer takes everything
		return err
	}
	w, err := e.dir.write(name, content.Bytes())
	e.telemetry.PprofFilesRemoved.Add(ctx, int64(w.removed))
	if w.disk != nil && w.removed > 0 {
		e.set.Logger.Warn("disk full, oldest files removed", zap.Int("files", w.removed), zap.Error(w.disk))
	}
	if w.file == "" {
		e.telemetry.PprofFilesFailed.Add(ctx, 1)
		e.telemetry.PprofSamples.Add(ctx, events, outcome("failed"))
		e.set.Logger.Error("profile not written, its samples are lost", zap.String("file", name+extension), zap.Int64("samples", events), zap.Error(err))
		e.report(err)
		return err
	}
	if err != nil {
		e.set.Logger.Warn("old files not removed", zap.Error(err))
	}
	e.telemetry.PprofFiles.Add(ctx, 1, metric.WithAttributes(attribute.String("reason", string(f.reason))))
	e.telemetry.PprofSamples.Add(ctx, events, outcome("written"))
	top := make([]string, 0, 5)
	for _, s := range hottest(p, 5) {
		top = append(top, fmt.Sprintf("%s %.1f%%", s.function, s.percent))
	}
	e.set.Logger.Info("profile written",
		zap.String("file", w.file),
		zap.Int64("samples", events),
		zap.Strings("hottest", top),
		zap.String("service", main.service),
		zap.String("unit", f.unit),
		zap.String("policy", f.policy),
		zap.String("trigger_id", f.trigger),
		zap.String("origin", f.origin),
		zap.String("finished_by", string(f.reason)),
	)
	e.report(nil)
	return nil
}

// outcome returns the attribute of pprof.samples.
func outcome(of string) metric.MeasurementOption {
	return metric.WithAttributes(attribute.String("outcome", of))
}

// report reports the component's status when writing begins to fail, and when it
// works again.
func (e *pprofExporter) report(err error) {
	e.mu.Lock()
	changed := e.failing != (err != nil)
	e.failing = err != nil
	// A component that is shut down must not report.
	changed = changed && !e.stopped && e.host != nil
	e.mu.Unlock()
	switch {
	case !changed:
	case err != nil:
		componentstatus.ReportStatus(e.host, componentstatus.NewRecoverableErrorEvent(err))
	default:
		componentstatus.ReportStatus(e.host, componentstatus.NewEvent(componentstatus.StatusOK))
	}
}
