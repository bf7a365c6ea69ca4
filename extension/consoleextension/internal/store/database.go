// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// errDamaged is returned for a file that is damaged according to SQLite,
// or that is not a database.
var errDamaged = errors.New("database damaged")

// schema creates version 2 of the database. A record describes one item, such as a unit,
// as JSON. A block contains the readings or the peers of one unit. The column at of a
// thinned block is the start of the block. For other blocks, at is the time of the write.
// All times are in seconds of the store's clock.
func schema() string {
	text := `CREATE TABLE records (kind TEXT, key TEXT, unit TEXT, stored INTEGER, data TEXT, PRIMARY KEY (kind, key));
CREATE TABLE blocks (tier INTEGER, at INTEGER, unit TEXT, data BLOB);
CREATE UNIQUE INDEX blocks_by_time ON blocks (tier, at, unit);`
	for _, t := range eventTables {
		text += fmt.Sprintf(`
CREATE TABLE %[1]s (id INTEGER PRIMARY KEY, subject TEXT, stored INTEGER, policy TEXT, why TEXT, data TEXT);
CREATE INDEX %[1]s_by_subject ON %[1]s (subject, policy, why);`, t.name)
	}
	return text + "PRAGMA user_version = 2;"
}

// database is a SQLite database. It is replaced when it is damaged.
type database struct {
	path   string
	log    *zap.Logger
	now    func() time.Time
	noSync bool

	turn    *semaphore.Weighted // held while sql is used; waiting for it ends with a context
	sql     *sql.DB             // nil if the file could not be opened again
	damaged atomic.Bool         // the file was found damaged, and must be replaced
	poke    func()              // makes the writer write, which replaces a damaged file
}

// connect opens a database with a single connection. It creates a missing file so that
// only the user who runs the process can read the file.
func connect(path string, pragmas ...string) (*sql.DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	// SQLite would create a file that other users can read. An existing file is not
	// opened here, because closing it would release the locks of SQLite on the file.
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		err = file.Close()
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	dsn := url.URL{Scheme: "file", Path: "/" + strings.TrimPrefix(filepath.ToSlash(path), "/"), RawQuery: url.Values{"_pragma": pragmas}.Encode()}
	db, err := sql.Open("sqlite", dsn.String())
	if err == nil {
		db.SetMaxOpenConns(1)
	}
	return db, err
}

// lockDirectory locks a directory for one store. The directory is unlocked when the
// returned database is closed or the process ends. The lock has its own file, because a
// damaged database is renamed.
func lockDirectory(dir string) (*sql.DB, error) {
	db, err := connect(filepath.Join(dir, "lock"), "locking_mode(EXCLUSIVE)", "journal_mode(MEMORY)")
	if err == nil {
		if _, err = db.Exec("PRAGMA user_version = 1"); err == nil { // the write takes a lock, which is kept
			return db, nil
		}
		_ = db.Close()
	}
	if code(err) == sqlite3.SQLITE_BUSY {
		return nil, fmt.Errorf("the console's directory %s is used by another collector, or by another console of this one: set directory to another for this one", dir)
	}
	return nil, fmt.Errorf("lock the console's directory %s: %w", dir, err)
}

// code returns the SQLite result code of an error, or 0 if the error has no code.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xFF
	}
	return 0
}

// damage wraps an error in errDamaged if SQLite reports a damaged file.
func damage(err error) error {
	if c := code(err); c == sqlite3.SQLITE_CORRUPT || c == sqlite3.SQLITE_NOTADB {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return err
}

// openDatabase opens a database. If the file is damaged, openDatabase sets it
// aside and creates a new database.
func openDatabase(path string, o Options, poke func()) (*database, error) {
	d := &database{path: path, log: o.Logger, now: o.Now, noSync: o.noSync, turn: semaphore.NewWeighted(1), poke: poke}
	err := d.open()
	if errors.Is(err, errDamaged) {
		err = d.replace(err)
	}
	return d, err
}

// open opens the file and checks it. A complete database is not written to, so that a
// store can open on a full disk.
func (d *database) open() error {
	sync := "synchronous(FULL)"
	if d.noSync {
		sync = "synchronous(OFF)"
	}
	db, err := connect(d.path, "busy_timeout(5000)", "journal_mode(TRUNCATE)", sync)
	if err != nil {
		return err
	}
	var found string
	var version int
	err = db.QueryRow("PRAGMA quick_check(1)").Scan(&found)
	if err == nil && found != "ok" {
		err = fmt.Errorf("%w: %s", errDamaged, found)
	}
	if err == nil {
		err = db.QueryRow("PRAGMA user_version").Scan(&version)
	}
	switch {
	case err != nil:
	case version == 0:
		_, err = db.Exec("PRAGMA auto_vacuum = INCREMENTAL; BEGIN;" + schema() + "COMMIT")
	case version != 2:
		err = fmt.Errorf("%w: it has version %d, and this collector knows version 2", errDamaged, version)
	}
	if err != nil {
		_ = db.Close()
		return damage(fmt.Errorf("open the console's database %s: %w", d.path, err))
	}
	d.sql = db
	return nil
}

// replace sets the file aside, and opens a new file. Files that were set aside before are
// removed.
func (d *database) replace(cause error) error {
	_ = d.turn.Acquire(context.Background(), 1) // cannot fail
	defer d.turn.Release(1)
	d.damaged.Store(false)
	if d.sql != nil {
		_ = d.sql.Close()
		d.sql = nil
	}
	for _, f := range d.aside() {
		_ = os.Remove(f)
	}
	_ = os.Remove(d.path + "-journal") // the journal of the damaged file
	name := d.path + asideInfix + d.now().UTC().Format("20060102T150405Z")
	if err := os.Rename(d.path, name); err != nil {
		return fmt.Errorf("set the console's damaged database aside: %w", err)
	}
	d.log.Error("console's database damaged, set aside; starting anew", zap.String("path", name), zap.Error(cause))
	return d.open()
}

const asideInfix = ".damaged-"

// aside returns the files that were set aside.
func (d *database) aside() []string {
	dir, base := filepath.Dir(d.path), filepath.Base(d.path)
	files, _ := fs.Glob(os.DirFS(dir), base+asideInfix+"*")
	for i, name := range files {
		files[i] = filepath.Join(dir, name)
	}
	return files
}

// use calls f with the database. If the database is not open because an earlier
// attempt failed, use opens it first.
func (d *database) use(ctx context.Context, f func(*sql.DB) error) error {
	err := d.turn.Acquire(ctx, 1)
	if err != nil {
		return err
	}
	defer d.turn.Release(1)
	if d.sql == nil {
		err = d.open()
	}
	if err == nil {
		err = damage(f(d.sql))
	}
	if errors.Is(err, errDamaged) && !d.damaged.Swap(true) {
		d.poke()
	}
	return err
}

// update calls f with a transaction. If f succeeds, update commits the transaction.
func (d *database) update(f func(*sql.Tx) error) error {
	return d.use(context.Background(), func(db *sql.DB) error {
		tx, err := db.Begin()
		if err != nil {
			return err
		}
		if err := f(tx); err != nil {
			return errors.Join(err, tx.Rollback())
		}
		return tx.Commit()
	})
}

// number returns the integer result of a query.
func (d *database) number(query string, args ...any) (n int64, err error) {
	err = d.use(context.Background(), func(db *sql.DB) error { return db.QueryRow(query, args...).Scan(&n) })
	return n, err
}

// each runs a query. For each row of the result, it scans the row into variables and then
// calls f.
func (d *database) each(ctx context.Context, into []any, f func(), query string, args ...any) error {
	return d.use(ctx, func(db *sql.DB) error {
		rows, err := db.QueryContext(ctx, query, args...)
		return eachRow(rows, err, into, f)
	})
}

// eachRow calls f for each row of a result, after it has scanned the row into variables.
func eachRow(rows *sql.Rows, err error, into []any, f func()) error {
	if err != nil {
		return err
	}
	for rows.Next() && err == nil {
		if err = rows.Scan(into...); err == nil {
			f()
		}
	}
	return cmp.Or(err, rows.Err(), rows.Close())
}

// shrink returns free pages to the file system. If all is false, shrink has no effect unless
// at least a quarter of the pages and at least 1024 pages are free.
func (d *database) shrink(all bool) error {
	many, err := d.number("SELECT freelist_count >= max(page_count / 4, 1024) FROM pragma_freelist_count, pragma_page_count")
	if err != nil || many == 0 && !all {
		return err
	}
	return d.use(context.Background(), func(db *sql.DB) error {
		_, err := db.Exec("PRAGMA incremental_vacuum")
		return err
	})
}

func (d *database) close() error {
	_ = d.turn.Acquire(context.Background(), 1) // cannot fail
	defer d.turn.Release(1)
	if d.sql == nil {
		return nil
	}
	defer func() { d.sql = nil }()
	return d.sql.Close()
}

// size returns the total size of the database and of the files that
// were set aside, in bytes.
func (d *database) size() (n int64) {
	for _, f := range append(d.aside(), d.path) {
		if st, err := os.Stat(f); err == nil {
			n += st.Size()
		}
	}
	return n
}
