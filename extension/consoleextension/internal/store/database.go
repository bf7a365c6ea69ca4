// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"go.uber.org/zap"
)

const (
	lockTimeout = time.Second      // for bbolt's own lock
	closeWait   = 10 * time.Second // for a database that does not close

	compactTransaction = 4 << 20 // bytes that are copied at once
)

// errDamaged is returned for a database whose file is not what bbolt wrote.
var errDamaged = errors.New("database damaged")

// database is a bbolt database. bbolt trusts its file and maps it into memory: a file
// that was damaged makes it panic, or touch memory that is not there. So the file is
// verified before bbolt opens it, and what bbolt does wrong later is errDamaged.
type database struct {
	path   string
	log    *zap.Logger
	now    func() time.Time
	noSync bool

	mu   sync.RWMutex // held to use bolt, and alone to replace it
	bolt *bolt.DB     // nil: it could not be opened anew
}

// openDatabase opens a database. If its file is damaged, it is set aside.
func openDatabase(path string, o Options) (*database, error) {
	d := &database{path: path, log: o.Logger, now: o.Now, noSync: o.noSync}
	err := d.open()
	if errors.Is(err, errDamaged) {
		err = d.setAside(err)
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// replace sets the database aside and opens a new one.
func (d *database) replace(cause error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.setAside(cause)
}

// reopen opens a database that could not be opened when it was replaced.
func (d *database) reopen() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bolt != nil {
		return nil
	}
	return d.open()
}

// open verifies the file, if there is one, and opens it.
func (d *database) open() error {
	if err := verify(d.path); err != nil {
		return err
	}
	return guard(func() (err error) {
		d.bolt, err = bolt.Open(d.path, 0o600, &bolt.Options{
			Timeout:        lockTimeout,
			NoSync:         d.noSync,
			NoFreelistSync: true, // a commit writes less, and Open finds free pages itself
			FreelistType:   bolt.FreelistMapType,
		})
		if errors.Is(err, berrors.ErrTimeout) {
			return inUse(filepath.Dir(d.path))
		}
		if err != nil {
			return fmt.Errorf("open the console's database %s: %w", d.path, err)
		}
		return nil
	})
}

// setAside renames the file, and opens a new one. Of files that were set aside only
// this one stays. The caller has the lock, or is alone.
func (d *database) setAside(cause error) error {
	if d.bolt != nil {
		old := d.bolt
		d.bolt = nil
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_ = guard(old.Close)
		}()
		select {
		case <-closed:
		case <-time.After(closeWait): // it waits for a lock that a panic left; it stays in memory
		}
	}
	for _, f := range d.aside() {
		_ = os.Remove(f)
	}
	name := d.path + ".damaged-" + d.now().UTC().Format("20060102T150405Z")
	if err := os.Rename(d.path, name); err != nil {
		return fmt.Errorf("set the console's damaged database aside: %w", err)
	}
	d.log.Error("console's database damaged, set aside; starting anew", zap.String("path", name), zap.Error(cause))
	return d.open()
}

// aside returns the files that were set aside.
func (d *database) aside() []string {
	names, _ := filepath.Glob(globQuote(d.path) + ".damaged-*")
	return names
}

func (d *database) view(f func(*bolt.Tx) error) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.bolt == nil {
		return berrors.ErrDatabaseNotOpen
	}
	return guard(func() error { return d.bolt.View(f) })
}

func (d *database) update(f func(*bolt.Tx) error) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.bolt == nil {
		return berrors.ErrDatabaseNotOpen
	}
	return guard(func() error { return d.bolt.Update(f) })
}

func (d *database) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bolt == nil {
		return nil
	}
	old := d.bolt
	d.bolt = nil
	return guard(old.Close)
}

// size returns the bytes of the file on disk.
func (d *database) size() int64 {
	st, err := os.Stat(d.path)
	if err != nil {
		return 0
	}
	return bytesOnDisk(st)
}

// used returns the bytes of the file that are not free.
func (d *database) used() (int64, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.bolt == nil {
		return 0, berrors.ErrDatabaseNotOpen
	}
	var used int64
	err := guard(func() error {
		return d.bolt.View(func(tx *bolt.Tx) error {
			st := d.bolt.Stats()
			used = tx.Size() - int64(st.FreePageN+st.PendingPageN)*int64(d.bolt.Info().PageSize)
			return nil
		})
	})
	return used, err
}

// compact copies the database into a new file without what is free. Bbolt's files do
// not shrink otherwise. The new file takes the place of the old one when it is complete
// on disk.
func (d *database) compact() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bolt == nil {
		return berrors.ErrDatabaseNotOpen
	}
	name := d.path + ".compact"
	_ = os.Remove(name) // of a collector that was killed
	err := guard(func() error {
		to, err := bolt.Open(name, 0o600, &bolt.Options{Timeout: lockTimeout, NoSync: true, NoFreelistSync: true, FreelistType: bolt.FreelistMapType})
		if err != nil {
			return err
		}
		err = bolt.Compact(to, d.bolt, compactTransaction)
		if err == nil && !d.noSync {
			err = to.Sync()
		}
		return errors.Join(err, to.Close())
	})
	if err != nil {
		_ = os.Remove(name)
		return fmt.Errorf("compact the console's database: %w", err)
	}
	before := d.size()
	old := d.bolt
	d.bolt = nil
	if err := guard(old.Close); err != nil {
		d.log.Warn("closing the console's database failed", zap.Error(err))
	}
	if err := os.Rename(name, d.path); err != nil {
		return errors.Join(fmt.Errorf("compact the console's database: %w", err), d.open())
	}
	syncDirectory(filepath.Dir(d.path))
	err = d.open()
	d.log.Debug("console's database compacted", zap.Int64("before", before), zap.Int64("after", d.size()))
	return err
}

// syncDirectory makes a rename last. Where directories cannot be synced, it does nothing.
func syncDirectory(dir string) {
	if f, err := os.Open(dir); err == nil {
		_ = f.Sync()
		_ = f.Close()
	}
}

// guard calls f. A panic and a fault of memory are errDamaged.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errDamaged, p)
		}
	}()
	return f()
}

// globQuote returns a pattern that matches a path alone.
func globQuote(path string) string {
	var b bytes.Buffer
	for _, c := range []byte(path) {
		if bytes.IndexByte([]byte(`*?[\`), c) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	return b.String()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// put stores a value with a checksum of it and its key.
func put(b *bolt.Bucket, key, value []byte) error {
	return b.Put(key, binary.LittleEndian.AppendUint32(value[:len(value):len(value)], checksum(key, value)))
}

// sealed returns the value that put has stored. ok is false if it is not that.
func sealed(key, stored []byte) (value []byte, ok bool) {
	n := len(stored) - 4
	if n < 0 {
		return nil, false
	}
	return stored[:n:n], binary.LittleEndian.Uint32(stored[n:]) == checksum(key, stored[:n])
}

func checksum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
}
