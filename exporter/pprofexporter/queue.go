// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/pprofconv"
)

// patience is the maximum time for writing one file. After this time,
// the disk counts as stalled.
const patience = 10 * time.Second

var errStalled = errors.New("the disk does not answer")

// queue contains the finished files that wait for the disk. A goroutine writes one file at
// a time, and ends when the queue is empty. Only this goroutine waits for a disk that does
// not answer. The exporter's lock guards the queue.
type queue struct {
	waiting []*openFile
	// writing reports whether the goroutine is running. current is the file that the
	// goroutine is writing.
	writing bool
	current *openFile
	// memory is the memory of the waiting files, plus twice the memory of current.
	// current counts twice because its encoded form is also in memory.
	memory int
	// stalled reports whether writing current takes longer than patience. abandoned
	// reports whether the exporter has already counted current as lost.
	stalled, abandoned bool
	patience           time.Duration // never changed
	failed             error         // last failure
}

// takeLargest removes and returns the waiting file with the largest memory.
func (q *queue) takeLargest() *openFile {
	largest := slices.MaxFunc(q.waiting, func(a, b *openFile) int { return cmp.Compare(a.size(), b.size()) })
	q.waiting = slices.DeleteFunc(q.waiting, func(f *openFile) bool { return f == largest })
	q.memory -= largest.size()
	return largest
}

// takeAll removes and returns all files. It abandons the file that is being written.
func (q *queue) takeAll() []*openFile {
	all := q.waiting
	q.waiting = nil
	for _, f := range all {
		q.memory -= f.size()
	}
	if q.current != nil {
		q.abandoned = true
		all = append(all, q.current)
	}
	return all
}

// wait waits until the queue changes or ctx ends. The caller must hold the lock, which
// wait releases while it waits.
func (e *pprofExporter) wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		e.mu.Lock() // the caller waits now
		defer e.mu.Unlock()
		e.changed.Broadcast()
	})
	defer stop()
	e.changed.Wait()
	return ctx.Err()
}

// write adds files to the queue. The caller holds the lock.
func (e *pprofExporter) write(done []*openFile) {
	for _, f := range done {
		if f.pprof.Events() > 0 {
			e.queue.waiting = append(e.queue.waiting, f)
			e.queue.memory += f.size()
		}
	}
	if !e.queue.writing && len(e.queue.waiting) > 0 {
		e.queue.writing = true
		go e.writeAll() // shutdown waits for this goroutine unless the disk does not answer
	}
}

// writeAll writes the files of the queue until the queue is empty.
func (e *pprofExporter) writeAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := &e.queue
	for len(q.waiting) > 0 {
		f := q.waiting[0]
		q.waiting = slices.Delete(q.waiting, 0, 1)
		q.current = f
		q.memory += f.size()
		e.mu.Unlock()
		err := e.writeFile(f)
		e.mu.Lock()
		q.memory -= 2 * f.size()
		q.failed = cmp.Or(err, q.failed)
		e.changed.Broadcast()
	}
	q.writing = false
}

// writeFile writes a file, and logs and counts the result.
func (e *pprofExporter) writeFile(f *openFile) error {
	main := f.main()
	p := f.pprof.Finish(main.executable)
	var content bytes.Buffer
	_ = p.Write(&content) // a buffer cannot fail
	late := time.AfterFunc(e.queue.patience, func() { e.stall(f) })
	w, err := e.dir.write(f.name(), content.Bytes())
	late.Stop()
	e.mu.Lock()
	stalled, abandoned := e.queue.stalled, e.queue.abandoned
	e.queue.stalled, e.queue.current = false, nil // a timer that has fired is too late
	e.mu.Unlock()
	if abandoned {
		return nil
	}
	ctx := context.Background()
	e.telemetry.PprofFilesRemoved.Add(ctx, int64(w.removed))
	if stalled {
		e.set.Logger.Info("disk answers again", zap.String("directory", e.dir.path))
	}
	if w.disk != nil && w.removed > 0 {
		e.set.Logger.Warn("disk full, oldest files removed", zap.Int("files", w.removed), zap.Error(w.disk))
	}
	if w.file == "" {
		e.lost(f, err)
		e.report(err)
		return err
	}
	if err != nil {
		e.set.Logger.Warn("old files not removed", zap.Error(err))
	}
	events := int64(f.pprof.Events())
	e.telemetry.PprofFiles.Add(ctx, 1, metric.WithAttributes(attribute.String("reason", string(f.reason))))
	e.telemetry.PprofSamples.Add(ctx, events, outcome("written"))
	top := make([]string, 0, 5)
	for _, s := range pprofconv.Hottest(p, 5) {
		top = append(top, fmt.Sprintf("%s %.1f%%", s.Function, s.Percent))
	}
	e.set.Logger.Info("profile written",
		zap.String("file", w.file),
		zap.Int64("samples", events),
		zap.Strings("hottest", top),
		zap.String("service", main.service),
		zap.String("unit", f.unit),
		zap.String("policy", f.why.Policy),
		zap.String("trigger_id", f.trigger),
		zap.String("origin", f.origin),
		zap.String("finished_by", string(f.reason)),
	)
	e.publish(f, w.file, content.Len(), time.Duration(p.DurationNanos), top)
	e.report(nil)
	return nil
}

// stall is called when the write of a file takes longer than patience.
func (e *pprofExporter) stall(f *openFile) {
	e.mu.Lock()
	if e.queue.current != f {
		e.mu.Unlock()
		return
	}
	e.queue.stalled = true
	e.changed.Broadcast()
	e.mu.Unlock()
	e.set.Logger.Warn("disk does not answer, profiles wait in memory", zap.String("directory", e.dir.path), zap.Duration("after", e.queue.patience))
	e.report(errStalled)
}

// lost logs and counts a file that was not written.
func (e *pprofExporter) lost(f *openFile, err error) {
	e.telemetry.PprofFilesFailed.Add(context.Background(), 1)
	e.telemetry.PprofSamples.Add(context.Background(), int64(f.pprof.Events()), outcome("failed"))
	e.set.Logger.Error("profile not written, its samples are lost", zap.String("file", f.name()+extension), zap.Int("samples", f.pprof.Events()), zap.Error(err))
}
