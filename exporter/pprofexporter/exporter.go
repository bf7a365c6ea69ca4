// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/exporter/pprofexporter/internal/metadata"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
)

// The bounds of what is held in memory, as estimated. A file that grows above
// its own is finished and its next part begun; above that of all together the
// largest is.
const (
	maxFileMemory = 16 << 20
	maxMemory     = 64 << 20
	// maxAge finishes files without a trigger: nothing else would, as long as
	// their profiles keep coming.
	maxAge = time.Minute
)

// noPolicy stands for the policy of profiles that no gate let out.
const noPolicy = "none"

// finishReason is why a file was finished, as the metric and the log say it.
type finishReason string

const (
	finishedIdle       finishReason = "idle"
	finishedByTrigger  finishReason = "trigger"
	finishedByAge      finishReason = "age"
	finishedByMemory   finishReason = "memory"
	finishedByShutdown finishReason = "shutdown"
)

// fileKey is what has a file of its own.
type fileKey struct{ trigger, profileType string }

// openFile is a file that still takes profiles; all of it is in memory.
type openFile struct {
	fileKey
	service, unit, policy string
	at                    time.Time // in the name
	begun, last           time.Time // by the exporter's clock
	data                  *aggregate
}

// openUnit is the open files of a unit. trigger is the newest seen: files of
// older ones take what comes late, and do not end the newest's.
type openUnit struct {
	trigger   string
	triggered time.Time
	files     map[fileKey]*openFile
}

// finished is a file on its way to the disk.
type finished struct {
	*openFile
	reason finishReason
}

type pprofExporter struct {
	set       exporter.Settings
	cfg       *Config
	now       func() time.Time
	dir       *directory
	telemetry *metadata.TelemetryBuilder
	host      component.Host

	maxFileMemory, maxMemory int

	mu      sync.Mutex // never held while writing
	units   map[string]*openUnit
	memory  int // of all open files
	stopped bool
	failing bool // the status says so

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func newExporter(set exporter.Settings, cfg *Config, now func() time.Time) (*pprofExporter, error) {
	telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	return &pprofExporter{
		set:           set,
		cfg:           cfg,
		now:           now,
		dir:           &directory{path: cfg.Directory, maxFiles: cfg.MaxFiles, maxBytes: cfg.MaxBytes},
		telemetry:     telemetry,
		maxFileMemory: maxFileMemory,
		maxMemory:     maxMemory,
		units:         make(map[string]*openUnit),
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
		o.Observe(int64(e.memory))
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

// shutdown writes what is open.
func (e *pprofExporter) shutdown(ctx context.Context) error {
	e.mu.Lock()
	first := !e.stopped
	e.stopped = true
	done := e.take(func(*openFile) (finishReason, bool) { return finishedByShutdown, true })
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

// loop finishes files that are due.
func (e *pprofExporter) loop(ctx context.Context) {
	ticker := time.NewTicker(min(time.Second, e.cfg.IdleTimeout/5))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			_ = e.finishDue(ctx) // write has said and counted it
		}
	}
}

func (e *pprofExporter) finishDue(ctx context.Context) error {
	now := e.now()
	e.mu.Lock()
	done := e.take(func(f *openFile) (finishReason, bool) {
		if now.Sub(f.last) >= e.cfg.IdleTimeout {
			return finishedIdle, true
		}
		return finishedByAge, f.trigger == "" && now.Sub(f.begun) >= maxAge
	})
	e.mu.Unlock()
	return e.write(ctx, done)
}

// consume adds each profile to its file. Files that are finished by it are
// written before it returns, so that a slow disk is felt upstream; that they
// failed is not an error of what has just arrived.
func (e *pprofExporter) consume(ctx context.Context, pd pprofile.Profiles) error {
	malformed := 0
	var done []finished
	d := dictionary.NewReader(pd.Dictionary())
	e.mu.Lock()
	if e.stopped {
		e.mu.Unlock()
		return errors.New("pprof exporter is shut down")
	}
	for _, rp := range pd.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			for _, p := range sp.Profiles().All() {
				f, ended := e.file(d, rp.Resource().Attributes(), p)
				done = append(done, ended...)
				before := f.data.size
				malformed += f.data.add(d, rp.Resource().Attributes(), p)
				e.memory += f.data.size - before
				done = append(done, e.shrink(f)...)
			}
		}
	}
	e.mu.Unlock()

	if malformed > 0 {
		e.telemetry.PprofSamples.Add(ctx, int64(malformed), outcome("malformed"))
		e.set.Logger.Warn("samples refer to entries that their dictionary does not have, left out", zap.Int("samples", malformed))
	}
	_ = e.write(ctx, done)
	return nil
}

// file returns the file that a profile belongs into, and the files of its unit
// that a new trigger ends.
func (e *pprofExporter) file(d dictionary.Reader, resource pcommon.Map, p pprofile.Profile) (*openFile, []finished) {
	attributes := make(map[string]string)
	for k, v := range d.Attributes(p.AttributeIndices()) {
		attributes[k] = v.AsString()
	}
	now := e.now()
	name := unitOf(attributes, resource)
	trigger := attributes[attr.TriggerID]
	triggered, _ := time.Parse(time.RFC3339, attributes[attr.TriggerTime])

	var ended []finished
	u := e.units[name]
	if u != nil && u.trigger != trigger && !triggered.Before(u.triggered) {
		ended = e.take(func(f *openFile) (finishReason, bool) {
			return finishedByTrigger, f.unit == name
		})
		u = nil
	}
	if u == nil {
		u = &openUnit{trigger: trigger, triggered: triggered, files: make(map[fileKey]*openFile)}
		e.units[name] = u
	}

	t := d.ProfileType(p)
	key := fileKey{trigger: trigger, profileType: typeName(t)}
	f := u.files[key]
	if f == nil {
		f = &openFile{
			fileKey: key,
			service: serviceOf(resource),
			unit:    name,
			policy:  policyOf(attributes, resource),
			begun:   now,
			data:    newAggregate(t),
		}
		switch {
		case !triggered.IsZero():
			f.at = triggered
		case p.Time() != 0:
			f.at = p.Time().AsTime()
		default:
			f.at = now
		}
		e.memory += f.data.size
		u.files[key] = f
	}
	f.last = now
	return f, ended
}

// shrink finishes f where it is too large, else the largest files until all
// together are not.
func (e *pprofExporter) shrink(f *openFile) []finished {
	var done []finished
	if f.data.size > e.maxFileMemory {
		done = e.take(func(open *openFile) (finishReason, bool) { return finishedByMemory, open == f })
	}
	for e.memory > e.maxMemory {
		var largest *openFile
		for _, u := range e.units {
			for _, f := range u.files {
				if largest == nil || f.data.size > largest.data.size {
					largest = f
				}
			}
		}
		done = append(done, e.take(func(open *openFile) (finishReason, bool) { return finishedByMemory, open == largest })...)
	}
	return done
}

// take removes the files that are due and returns them in the order of their
// beginning.
func (e *pprofExporter) take(due func(*openFile) (finishReason, bool)) []finished {
	var done []finished
	for name, u := range e.units {
		for key, f := range u.files {
			if reason, ok := due(f); ok {
				done = append(done, finished{f, reason})
				e.memory -= f.data.size
				delete(u.files, key)
			}
		}
		if len(u.files) == 0 {
			delete(e.units, name)
		}
	}
	slices.SortFunc(done, func(a, b finished) int {
		return cmp.Or(a.begun.Compare(b.begun), strings.Compare(a.unit, b.unit), strings.Compare(a.profileType, b.profileType))
	})
	return done
}

// write writes files and says what became of each.
func (e *pprofExporter) write(ctx context.Context, done []finished) error {
	var errs []error
	for _, f := range done {
		if f.data.events == 0 {
			continue
		}
		events := int64(f.data.events)
		p := f.data.finish()
		name := fileName(f.service, f.unit, f.at, f.policy, f.profileType)
		file, rotated, err := e.dir.write(name, p.Write)
		e.telemetry.PprofFilesRemoved.Add(ctx, int64(rotated))
		if file == "" {
			e.telemetry.PprofFilesFailed.Add(ctx, 1)
			e.telemetry.PprofSamples.Add(ctx, events, outcome("failed"))
			e.set.Logger.Error("profile not written, its samples are lost", zap.String("file", name+extension), zap.Int64("samples", events), zap.Error(err))
			errs = append(errs, err)
			e.report(err)
			continue
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
			zap.String("file", file),
			zap.Int64("samples", events),
			zap.Strings("hottest", top),
			zap.String("service", f.service),
			zap.String("unit", f.unit),
			zap.String("policy", f.policy),
			zap.String("trigger_id", f.trigger),
			zap.String("finished_by", string(f.reason)),
		)
		e.report(nil)
	}
	return errors.Join(errs...)
}

// outcome is the attribute of the samples' metric.
func outcome(of string) metric.MeasurementOption {
	return metric.WithAttributes(attribute.String("outcome", of))
}

// report tells the collector when writing starts to fail and when it works
// again.
func (e *pprofExporter) report(err error) {
	e.mu.Lock()
	changed := e.failing != (err != nil)
	e.failing = err != nil
	// After Shutdown a component has no status of its own.
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

// unitOf is what the gate calls the unit, else what comes closest.
func unitOf(attributes map[string]string, resource pcommon.Map) string {
	if u := attributes[attr.Unit]; u != "" {
		return u
	}
	if id := dictionary.ResourceText(resource, attr.ContainerID); id != "" {
		return id
	}
	if pid := dictionary.ResourceText(resource, attr.PID); pid != "" {
		return "pid-" + pid
	}
	return serviceOf(resource)
}

func serviceOf(resource pcommon.Map) string {
	if s := dictionary.ResourceText(resource, attr.ServiceName); s != "" {
		return s
	}
	if name := dictionary.ResourceText(resource, attr.ExecutableName); name != "" {
		return "unknown_service:" + name
	}
	return "unknown_service"
}

// policyOf is the policy that opened the gate first.
func policyOf(attributes map[string]string, resource pcommon.Map) string {
	if p := dictionary.ResourceText(resource, attr.TriggerPolicy); p != "" {
		return p
	}
	if p := attributes[attr.TriggerPolicy]; p != "" {
		return p
	}
	return noPolicy
}
