// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/trigger"
)

const (
	storageName = "trigger"  // of what is stored, beside the component's id
	recordKey   = "snapshot" // of the one record in there

	// recordVersion is raised by a change that older readers would misread;
	// fields that are added do not need it.
	recordVersion = 1

	// maxRecord bounds a record: 10,000 containers cooling down take less than
	// 2 MiB per policy. A larger one is not written, which is said, nor read.
	maxRecord = 16 << 20

	// saveTimeout bounds one write, for storages that heed it.
	saveTimeout = 10 * time.Second
)

// record is what is stored.
type record struct {
	Version  int             `json:"version"`
	Taken    time.Time       `json:"taken"`
	Snapshot json.RawMessage `json:"snapshot"` // without its time, so that it tells whether anything is new
}

// memory keeps what has to survive a restart of the collector, in a storage
// extension. Saving never blocks the caller: a goroutine writes the latest
// snapshot, and those in between, while it writes, are left out.
type memory struct {
	client storage.Client
	log    *zap.Logger

	mu     sync.Mutex
	latest *trigger.Snapshot // to be written
	closed bool
	wake   chan struct{}
	ended  chan struct{}
	cancel context.CancelFunc

	written [sha256.Size]byte // of the snapshot written last; of the writer, as is what follows
	failed  int               // writes since the last that did not fail
}

// openStorage finds a storage extension by its id and opens what is stored there
// for a component.
func openStorage(ctx context.Context, host component.Host, id, owner component.ID) (storage.Client, error) {
	ext, ok := host.GetExtensions()[id]
	if !ok {
		return nil, fmt.Errorf("storage: no extension %q: configure it under extensions, and list it under service::extensions", id)
	}
	store, ok := ext.(storage.Extension)
	if !ok {
		return nil, fmt.Errorf("storage: the extension %q stores nothing: name a storage extension, such as file_storage", id)
	}
	client, err := store.GetClient(ctx, component.KindProcessor, owner, storageName)
	if err != nil {
		return nil, fmt.Errorf("storage: open what %q holds for %q; where one processor is in several pipelines, give each a name of its own, such as cpu_trigger/2: %w", id, owner, err)
	}
	return client, nil
}

// newMemory takes over a client and starts to write what is saved.
func newMemory(client storage.Client, log *zap.Logger) *memory {
	ctx, cancel := context.WithCancel(context.Background())
	m := &memory{client: client, log: log, wake: make(chan struct{}, 1), ended: make(chan struct{}), cancel: cancel}
	go m.run(ctx)
	return m
}

// load returns what was saved last. ok is false where nothing was, and where it
// cannot be understood, which is logged: the collector then starts afresh.
func (m *memory) load(ctx context.Context) (s trigger.Snapshot, ok bool) {
	value, err := m.client.Get(ctx, recordKey)
	if err == nil && value == nil {
		return trigger.Snapshot{}, false
	}
	if err == nil {
		s, err = decodeRecord(value)
	}
	if err != nil {
		m.log.Warn("cooldowns and budgets of the last run are not known", zap.Error(err))
		return trigger.Snapshot{}, false
	}
	return s, true
}

// save has a snapshot written some time soon, in place of one that waits. The
// snapshot must not be changed any more. After close it does nothing.
func (m *memory) save(s trigger.Snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.latest = &s
	select {
	case m.wake <- struct{}{}:
	default: // there is a token already
	}
}

// close writes a last snapshot, and closes the client. It may be called again.
func (m *memory) close(ctx context.Context, last trigger.Snapshot) error {
	m.mu.Lock()
	again := m.closed
	m.closed, m.latest = true, nil
	m.mu.Unlock()
	if again {
		return nil
	}
	m.cancel()
	<-m.ended
	err := m.write(ctx, last)
	if err != nil {
		err = fmt.Errorf("save cooldowns and budgets for the next run: %w", err)
	}
	if closing := m.client.Close(ctx); closing != nil {
		err = errors.Join(err, fmt.Errorf("close the storage of cooldowns and budgets: %w", closing))
	}
	return err
}

func (m *memory) run(ctx context.Context) {
	defer close(m.ended)
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		}
		m.mu.Lock()
		latest := m.latest
		m.latest = nil
		m.mu.Unlock()
		if latest == nil {
			continue
		}
		switch err := m.write(ctx, *latest); {
		case ctx.Err() != nil: // the last write is close's to do
		case err == nil:
			if m.failed > 0 {
				m.log.Info("cooldowns and budgets are saved again", zap.Int("failed", m.failed))
			}
			m.failed = 0
		default:
			m.failed++
			if m.failed == 1 {
				m.log.Error("cooldowns and budgets cannot be saved; a restart would forget them", zap.Error(err))
			}
		}
	}
}

// write stores a snapshot that says something new.
func (m *memory) write(ctx context.Context, s trigger.Snapshot) error {
	snapshot, value, err := encodeRecord(s)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(snapshot)
	if sum == m.written {
		return nil
	}
	m.written = [sha256.Size]byte{} // what is stored is not known until it succeeds
	ctx, cancel := context.WithTimeout(ctx, saveTimeout)
	defer cancel()
	if err := m.client.Set(ctx, recordKey, value); err != nil {
		return err
	}
	m.written = sum
	return nil
}

// encodeRecord writes a record, and what it says beside its time.
func encodeRecord(s trigger.Snapshot) (snapshot, value []byte, err error) {
	r := record{Version: recordVersion, Taken: s.Taken}
	s.Taken = time.Time{}
	if r.Snapshot, err = json.Marshal(s); err != nil {
		return nil, nil, err
	}
	if value, err = json.Marshal(r); err != nil {
		return nil, nil, err
	}
	if len(value) > maxRecord {
		return nil, nil, fmt.Errorf("the record has %d bytes, and at most %d are kept", len(value), maxRecord)
	}
	return r.Snapshot, value, nil
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
	if err := json.Unmarshal(r.Snapshot, &s); err != nil {
		return trigger.Snapshot{}, fmt.Errorf("the stored record is corrupt: %w", err)
	}
	s.Taken = r.Taken
	return s, nil
}
