// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/late"
	"github.com/hotprofile/hotprofile/internal/trigger"
)

const (
	storageName = "trigger"  // name of the storage, in addition to the component's id
	recordKey   = "snapshot" // key of the only record

	// recordVersion must change if older versions of the program would misread a record. A
	// new field does not require a change.
	recordVersion = 1

	// maxRecord limits the size of a record, in bytes. A larger record is neither written
	// nor read. 10,000 containers in cooldown need less than 2 MiB per policy.
	maxRecord = 16 << 20

	// openTimeout limits the time for opening a storage. Opening blocks while another
	// process has the storage open. callTimeout limits the time of all other calls. If a
	// call has not returned callGrace after its timeout, the storage is not called again.
	openTimeout = time.Minute
	callTimeout = 10 * time.Second
	callGrace   = 5 * time.Second
)

// record is the stored form of a snapshot.
type record struct {
	Version  int              `json:"version"`
	Taken    time.Time        `json:"taken"`
	Snapshot trigger.Snapshot `json:"snapshot"`
}

// memory saves snapshots in a storage extension, so that cooldowns and budgets survive a
// restart. Saving never blocks the caller. A goroutine writes the latest snapshot and skips
// older snapshots. One goroutine at a time calls save and close, and close comes last.
type memory struct {
	client storage.Client
	log    *zap.Logger
	latest chan trigger.Snapshot // contains the next snapshot to write
	stop   func()                // ends the goroutine and waits for it

	// load, run and close use the fields below one after the other.
	lost   error // why the client must not be called any more; nil: the client works
	failed int   // failed writes since the last success
}

// findStorage returns the storage extension with an id. An error indicates a mistake in the
// configuration.
func findStorage(host component.Host, id component.ID) (storage.Extension, error) {
	ext, ok := host.GetExtensions()[id]
	if !ok {
		return nil, fmt.Errorf("storage: no extension %q: configure it under extensions, and list it under service::extensions", id)
	}
	store, ok := ext.(storage.Extension)
	if !ok {
		return nil, fmt.Errorf("storage: the extension %q stores nothing: name a storage extension, such as file_storage", id)
	}
	return store, nil
}

// openStorage opens the storage of a component in a storage extension.
func openStorage(ctx context.Context, store storage.Extension, owner component.ID) (storage.Client, error) {
	var client storage.Client
	err := guard(ctx, openTimeout, func(ctx context.Context) error {
		opened, err := store.GetClient(ctx, component.KindProcessor, owner, storageName)
		if err == nil && ctx.Err() != nil { // the caller no longer waits
			return opened.Close(ctx)
		}
		client = opened
		return err
	})
	switch {
	case err == nil:
		return client, nil
	case err.Error() == lockTimeout:
		return nil, fmt.Errorf("storage: another process, or a processor %q of another pipeline, has it open (give each processor a name of its own, such as cpu_trigger/2): %w", owner, err)
	}
	return nil, fmt.Errorf("storage: open it for %q: %w; if its file is damaged, delete it", owner, err)
}

// lockTimeout is the error text of file_storage if another process has the file open.
const lockTimeout = "timeout"

// guard calls a storage on a separate goroutine, so that the collector survives a storage
// that hangs or panics. For example, file_storage panics if its file is damaged. guard
// then returns an abandonedError, and the storage must not be called again.
func guard(ctx context.Context, timeout time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if r := recover(); r != nil {
				err = abandonedError{fmt.Sprintf("it panicked: %v", r)}
			}
		}()
		debug.SetPanicOnFault(true) // file_storage maps its file, which may be truncated
		err = call(ctx)
	}()
	if !late.Wait(ctx, done, cancel, callGrace) {
		return abandonedError{"it does not answer"}
	}
	return err
}

// abandonedError is the error of a storage that hangs or panicked.
type abandonedError struct{ why string }

func (e abandonedError) Error() string { return e.why }

// newMemory starts the goroutine that writes. The returned memory owns the client.
func newMemory(client storage.Client, log *zap.Logger) *memory {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	m := &memory{client: client, log: log, latest: make(chan trigger.Snapshot, 1), stop: func() { cancel(); running.Wait() }}
	running.Go(func() { m.run(ctx) })
	return m
}

// call calls the client, unless an earlier call hung or panicked.
func (m *memory) call(ctx context.Context, call func(context.Context) error) error {
	if m.lost != nil {
		return m.lost
	}
	err := guard(ctx, callTimeout, call)
	if errors.As(err, new(abandonedError)) {
		m.lost = err
	}
	return err
}

// load returns the last saved snapshot. ok is false if there is no snapshot or the
// snapshot cannot be read. load logs a failed read.
func (m *memory) load(ctx context.Context) (s trigger.Snapshot, ok bool) {
	var value []byte
	err := m.call(ctx, func(ctx context.Context) (err error) {
		value, err = m.client.Get(ctx, recordKey)
		return err
	})
	if err == nil && value == nil {
		return trigger.Snapshot{}, false
	}
	if err == nil {
		s, err = decodeRecord(value)
	}
	if err != nil {
		m.log.Warn("cannot restore cooldowns and budgets", zap.Error(err))
		return trigger.Snapshot{}, false
	}
	return s, true
}

// save schedules the writing of a snapshot. The new snapshot
// replaces a snapshot that is not written yet. The caller must not
// modify the snapshot afterwards.
func (m *memory) save(s trigger.Snapshot) {
	select {
	case <-m.latest:
	default:
	}
	m.latest <- s
}

// close writes a last snapshot and closes the client.
func (m *memory) close(ctx context.Context, last trigger.Snapshot) error {
	m.stop()
	err := m.write(ctx, last)
	if err != nil {
		err = fmt.Errorf("save cooldowns and budgets for the next run: %w", err)
	}
	if errors.As(err, new(abandonedError)) {
		return err
	}
	if closing := m.call(ctx, m.client.Close); closing != nil {
		err = errors.Join(err, fmt.Errorf("close the storage of cooldowns and budgets: %w", closing))
	}
	return err
}

func (m *memory) run(ctx context.Context) {
	for {
		var latest trigger.Snapshot
		select {
		case <-ctx.Done():
			return
		case latest = <-m.latest:
		}
		switch err := m.write(ctx, latest); {
		case ctx.Err() != nil: // close writes the last snapshot
		case err == nil:
			if m.failed > 0 {
				m.log.Info("saved cooldowns and budgets again", zap.Int("failed", m.failed))
			}
			m.failed = 0
		default:
			m.failed++
			if m.failed == 1 {
				m.log.Error("cannot save cooldowns and budgets", zap.Error(err))
			}
		}
	}
}

// write stores a snapshot.
func (m *memory) write(ctx context.Context, s trigger.Snapshot) error {
	value, err := encodeRecord(s)
	if err != nil {
		return err
	}
	return m.call(ctx, func(ctx context.Context) error { return m.client.Set(ctx, recordKey, value) })
}

func encodeRecord(s trigger.Snapshot) ([]byte, error) {
	value, err := json.Marshal(record{Version: recordVersion, Taken: s.Taken, Snapshot: s})
	if n := len(value); n > maxRecord {
		return nil, fmt.Errorf("the record has %d bytes, and at most %d are kept", n, maxRecord)
	}
	return value, err
}

func decodeRecord(value []byte) (s trigger.Snapshot, err error) {
	if len(value) > maxRecord {
		return s, fmt.Errorf("the stored record has %d bytes, and at most %d are read", len(value), maxRecord)
	}
	var r record
	if err := json.Unmarshal(value, &r); err != nil {
		return s, fmt.Errorf("the stored record is corrupt: %w", err)
	}
	if r.Version != recordVersion {
		return s, fmt.Errorf("the stored record is of version %d, and this collector knows %d", r.Version, recordVersion)
	}
	r.Snapshot.Taken = r.Taken
	return r.Snapshot, nil
}
