// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
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
	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/pprofconv"
)

// pprofExporter writes the profiles of each unit and trigger to files.
type pprofExporter struct {
	set       exporter.Settings
	cfg       *Config
	now       func() time.Time
	dir       *directory
	telemetry *metadata.TelemetryBuilder
	host      component.Host
	events    *hotunitsextension.HotUnits // nil if the collector has no hot_units extension

	mu      sync.Mutex // not held while writing
	open    openFiles
	queue   queue
	changed *sync.Cond // the queue or stopped has changed
	stopped bool
	failing bool // the last write failed, and the failure was reported as the status

	// maxMemory is the maximum memory of the open files and the files in the queue
	// together, in estimated bytes.
	maxMemory int

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func newExporter(set exporter.Settings, cfg *Config, now func() time.Time) (*pprofExporter, error) {
	telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	e := &pprofExporter{
		set:       set,
		cfg:       cfg,
		now:       now,
		dir:       &directory{path: cfg.Directory, maxFiles: cfg.MaxFiles, maxBytes: cfg.MaxBytes},
		telemetry: telemetry,
		open:      newOpenFiles(),
		queue:     queue{patience: patience},
		maxMemory: maxMemory,
	}
	e.changed = sync.NewCond(&e.mu)
	return e, nil
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
		o.Observe(int64(e.memory()))
		return nil
	})
	if err != nil {
		return err
	}
	e.host = host
	e.events = hotunitsextension.Find(host, e.set.Logger)
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	e.wg.Go(func() { e.loop(ctx) })
	return nil
}

// shutdown writes the open files. Files that cannot be written in time are lost.
func (e *pprofExporter) shutdown(ctx context.Context) error {
	e.mu.Lock()
	first := !e.stopped
	e.stopped = true
	e.queue.failed = nil
	e.write(e.open.all())
	e.changed.Broadcast()
	for e.queue.writing && !e.queue.stalled && ctx.Err() == nil {
		_ = e.wait(ctx) // the loop checks ctx
	}
	err, left := e.queue.failed, e.queue.takeAll()
	e.queue.failed = nil
	e.mu.Unlock()
	if e.cancel != nil {
		e.cancel()
	}
	e.wg.Wait()
	for _, f := range left {
		e.lost(f, errStalled)
		err = fmt.Errorf("pprof exporter has lost %d files: %w", len(left), errStalled)
	}
	if first {
		e.telemetry.Shutdown()
	}
	return err
}

// loop finishes and writes the files that are due, until ctx ends.
func (e *pprofExporter) loop(ctx context.Context) {
	ticker := time.NewTicker(min(time.Second, e.cfg.IdleTimeout/5))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			e.finishDue()
		}
	}
}

func (e *pprofExporter) finishDue() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.write(e.open.due(e.now(), e.cfg.IdleTimeout))
}

// consume adds each profile to its file. If memory is full, consume waits for the disk,
// so a slow disk slows the pipeline down. If the disk does not respond, profiles are
// lost.
func (e *pprofExporter) consume(ctx context.Context, pd pprofile.Profiles) error {
	malformed, err := e.addAll(ctx, pd)
	if malformed > 0 {
		e.telemetry.PprofSamples.Add(ctx, int64(malformed), outcome("malformed"))
		e.set.Logger.Warn("malformed samples dropped: they refer to entries that their dictionary does not have", zap.Int("samples", malformed))
	}
	return err
}

func (e *pprofExporter) addAll(ctx context.Context, pd pprofile.Profiles) (malformed int, err error) {
	d := dictionary.NewReader(pd.Dictionary())
	for _, rp := range pd.ResourceProfiles().All() {
		of := sourceOf(rp.Resource().Attributes())
		for _, sp := range rp.ScopeProfiles().All() {
			of.scope = pprofconv.Cut(sp.Scope().Name())
			for _, p := range sp.Profiles().All() {
				n, err := e.add(ctx, d, of, p)
				malformed += n
				if err != nil {
					return malformed, err
				}
				ctx = context.WithoutCancel(ctx) // the sender must not repeat profiles that were added
			}
		}
	}
	return malformed, nil
}

// add adds a profile to its files. If one file has no room for all samples of a type, the
// remaining samples go to another file. add returns an error only if no sample was added.
func (e *pprofExporter) add(ctx context.Context, d dictionary.Reader, of source, p pprofile.Profile) (malformed int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	parts := pprofconv.PartsOf(d.ProfileType(p), p)
	for i, part := range parts {
		for from := 0; from < part.Len(); {
			if err := e.makeRoom(ctx); err != nil {
				if i == 0 && from == 0 {
					return 0, err
				}
				// The exporter was shut down in the middle of a profile.
				failed := part.Events(from)
				for _, part := range parts[i+1:] {
					failed += part.Events(0)
				}
				e.telemetry.PprofSamples.Add(ctx, failed, outcome("failed"))
				return malformed, nil
			}
			done, a := e.open.add(d, of, part, from, e.maxMemory-e.memory(), e.now())
			e.write(done)
			malformed += a.Malformed
			from = a.Next
			ctx = context.WithoutCancel(ctx)
		}
	}
	return malformed, nil
}

var errStopped = errors.New("pprof exporter is shut down")

// makeRoom waits until the profiles fit into the memory limit, or until only the file that is
// being written is left. It first writes the largest open files. If the disk does not
// respond, it drops the largest file that waits for the disk. The caller must hold the
// lock. makeRoom releases the lock while it waits.
func (e *pprofExporter) makeRoom(ctx context.Context) error {
	for !e.stopped {
		if e.memory() <= e.maxMemory {
			return nil
		}
		largest, q := e.open.largest(), &e.queue
		switch {
		case q.stalled && len(q.waiting) > 0:
			f := q.takeLargest()
			e.mu.Unlock()
			e.lost(f, errStalled)
			e.mu.Lock()
		case largest != nil && (q.stalled || !q.writing):
			e.write([]*openFile{e.open.finish(largest, finishedByMemory)})
		case q.stalled || !q.writing:
			return nil // only the file that is being written is left
		default:
			if err := e.wait(ctx); err != nil {
				return err
			}
		}
	}
	return errStopped
}

// memory returns the estimated memory of all profiles that are not written yet.
func (e *pprofExporter) memory() int { return e.open.memory + e.queue.memory }

// outcome returns the outcome attribute of the metric pprof.samples.
func outcome(of string) metric.MeasurementOption {
	return metric.WithAttributes(attribute.String("outcome", of))
}

// report changes the status of the component when writes begin to fail,
// and when writes work again.
func (e *pprofExporter) report(err error) {
	e.mu.Lock()
	changed := e.failing != (err != nil)
	e.failing = err != nil
	// A component must not report a status while it is being shut down.
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
