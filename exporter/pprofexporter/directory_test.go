// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofexporter

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/atomicfile"
	"github.com/hotprofile/hotprofile/test/pprofstest"
)

func newDirectory(t *testing.T) *directory {
	t.Helper()
	d := &directory{path: filepath.Join(t.TempDir(), "deep", "profiles"), maxFiles: 3, maxBytes: 1 << 20}
	_, _, err := d.open()
	require.NoError(t, err)
	return d
}

var text10 = []byte("0123456789")

func (d *directory) names(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(d.path)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func nameAt(service string) string {
	return fileName(service, "unit", time.Unix(0, pprofstest.WindowStart), "cpu", "cpu")
}

func TestFilesAndDirectoryHaveRestrictedModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no permission bits")
	}
	d := newDirectory(t)
	info, err := os.Stat(d.path)
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&^0o750)
	w, err := d.write(nameAt("checkout"), text10)
	require.NoError(t, err)
	info, err = os.Stat(w.file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode().Perm())
}

// TestWriteSucceedsIfItsDirectoryIsRemoved covers a directory that a user has removed.
func TestWriteSucceedsIfItsDirectoryIsRemoved(t *testing.T) {
	d := newDirectory(t)
	require.NoError(t, os.RemoveAll(d.path))
	w, err := d.write(nameAt("checkout"), text10)
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Base(w.file)}, d.names(t))
	content, err := os.ReadFile(w.file)
	require.NoError(t, err)
	require.Equal(t, string(text10), string(content))
}

// TestWriteSucceedsWhileOthersRemoveUnfinishedFiles covers several collectors that share
// a directory. Each collector removes unfinished files when it starts.
func TestWriteSucceedsWhileOthersRemoveUnfinishedFiles(t *testing.T) {
	d := newDirectory(t)
	d.maxFiles = 1000
	var stop atomic.Bool
	cleaned := make(chan error, 1)
	go func() {
		var errs []error
		for !stop.Load() {
			names, err := filepath.Glob(filepath.Join(d.path, atomicfile.TemporaryPrefix+"*"))
			errs = append(errs, err)
			for _, name := range names {
				_ = os.Remove(name)
			}
		}
		cleaned <- errors.Join(errs...)
	}()
	written := 0
	for range 100 {
		w, err := d.write(nameAt("checkout"), text10)
		if err == nil {
			written++
			require.FileExists(t, w.file)
			continue
		}
		require.ErrorIs(t, err, fs.ErrNotExist, "twice in a row")
	}
	stop.Store(true)
	require.NoError(t, <-cleaned)
	require.Len(t, d.names(t), written, "no unfinished file is left")
}

func TestUnfinishedFilesAloneAreRemovedAtStart(t *testing.T) {
	d := newDirectory(t)
	stranger := []string{".hotprofile-notes", "notes.tmp", "a.pb.gz", "profile.pb.gz"}
	for _, name := range append([]string{".hotprofile-123.tmp"}, stranger...) {
		require.NoError(t, os.WriteFile(filepath.Join(d.path, name), nil, 0o600))
	}
	require.NoError(t, os.Mkdir(filepath.Join(d.path, ".hotprofile-dir.tmp"), 0o700))
	leftovers, rotated, err := d.open()
	require.NoError(t, err)
	require.Equal(t, 1, leftovers)
	require.Zero(t, rotated)
	require.ElementsMatch(t, append(stranger, ".hotprofile-dir.tmp"), d.names(t))
}

func TestOldestFilesAreRemovedFirst(t *testing.T) {
	begin := time.Now().Add(-time.Hour)
	fill := func(t *testing.T, d *directory) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(d.path, "mine.pb.gz"), make([]byte, 100), 0o600))
		require.NoError(t, os.Chtimes(filepath.Join(d.path, "mine.pb.gz"), begin, begin.Add(-time.Hour)))
		for i := range 5 {
			w, err := d.write(nameAt(fmt.Sprint("s", i)), text10)
			require.NoError(t, err)
			at := begin.Add(time.Duration(i) * time.Minute)
			require.NoError(t, os.Chtimes(w.file, at, at))
		}
	}
	name := func(i int) string { return nameAt(fmt.Sprint("s", i)) + extension }
	t.Run("by number", func(t *testing.T) {
		d := newDirectory(t)
		fill(t, d)
		require.Equal(t, []string{"mine.pb.gz", name(2), name(3), name(4)}, d.names(t))
	})
	t.Run("by bytes", func(t *testing.T) {
		d := newDirectory(t)
		d.maxFiles, d.maxBytes = 100, 25
		fill(t, d)
		require.Equal(t, []string{"mine.pb.gz", name(3), name(4)}, d.names(t))
	})
	t.Run("but not the newest", func(t *testing.T) {
		d := newDirectory(t)
		d.maxFiles, d.maxBytes = 100, 5
		fill(t, d)
		require.Equal(t, []string{"mine.pb.gz", name(4)}, d.names(t))
	})
	t.Run("at start too", func(t *testing.T) {
		d := newDirectory(t)
		d.maxFiles = 100
		fill(t, d)
		d.maxFiles = 2
		_, rotated, err := d.open()
		require.NoError(t, err)
		require.Equal(t, 3, rotated)
		require.Equal(t, []string{"mine.pb.gz", name(3), name(4)}, d.names(t))
	})
}

func TestEqualNamesGetNumbers(t *testing.T) {
	d := newDirectory(t)
	d.maxFiles = 100
	for range 12 {
		_, err := d.write(nameAt("checkout"), text10)
		require.NoError(t, err)
	}
	require.Len(t, d.names(t), 12)
	require.Contains(t, d.names(t), nameAt("checkout")+"-12"+extension)
}

// TestNumbersOfRemovedFilesAreNotUsedAgain checks that files with the same name are
// numbered in order, even if old files were removed.
func TestNumbersOfRemovedFilesAreNotUsedAgain(t *testing.T) {
	d := newDirectory(t)
	name := nameAt("checkout")
	for range 5 {
		_, err := d.write(name, text10)
		require.NoError(t, err)
		now := time.Now() // files that are written at the same time may have equal times
		for i, file := range []string{"-5", "-4", "-3", "-2", ""} {
			at := now.Add(-time.Duration(i) * time.Minute)
			if err := os.Chtimes(filepath.Join(d.path, name+file+extension), at, at); err != nil {
				require.ErrorIs(t, err, fs.ErrNotExist)
			}
		}
	}
	require.Equal(t, []string{name + "-3" + extension, name + "-4" + extension, name + "-5" + extension}, d.names(t))
	for _, stranger := range []string{"-x", "-", "-1", "-0007x", "-99999"} {
		require.NoError(t, os.WriteFile(filepath.Join(d.path, name+stranger+extension), nil, 0o600))
	}
	require.Equal(t, 6, d.number(name))
	require.Equal(t, 1, d.number(name+"x"))
}

func TestWriteDoesNotFollowLinks(t *testing.T) {
	d := newDirectory(t)
	outside := filepath.Join(t.TempDir(), "precious")
	require.NoError(t, os.WriteFile(outside, []byte("precious"), 0o600))
	if err := os.Symlink(outside, filepath.Join(d.path, nameAt("checkout")+extension)); err != nil {
		t.Skip(err)
	}
	_, err := d.write(nameAt("checkout"), text10)
	require.NoError(t, err)
	content, err := os.ReadFile(outside)
	require.NoError(t, err)
	require.Equal(t, "precious", string(content))
}

func FuzzFileName(f *testing.F) {
	f.Add("checkout", "4f1c0c6b8a2e", "cpu", "cpu")
	f.Add("../../x", "/system.slice/x.service", "", "off_cpu")
	f.Add(strings.Repeat("s", 500), strings.Repeat("ü", 500), ".", "-")
	f.Fuzz(func(t *testing.T, service, unit, policy, profileType string) {
		name := fileName(service, unit, time.Unix(0, pprofstest.WindowStart), policy, profileType)
		longest := name + "-9999" + extension
		require.LessOrEqual(t, len(longest), 200)
		require.Regexp(t, ours(), longest)
		require.Equal(t, name, filepath.Base(name))
		require.NotContains(t, ".-", name[:1])
	})
}
