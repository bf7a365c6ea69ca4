// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Tasks lists and counts the threads of a group.
type Tasks struct {
	r       *Reader
	group   Group
	dir     string // of the group's own cgroup that tells it apart
	counted figure // pids.current; no path where it has to be counted
}

// OpenTasks opens the threads of a group. The error is an [Unavailable] if the
// group has no cgroup of its own.
func (r *Reader) OpenTasks(g Group) (*Tasks, error) {
	t := &Tasks{r: r, group: g}
	var err error
	if h, ok := r.tree.owner(PIDs); ok {
		if dir, err := r.tree.Own(g, h); err == nil {
			t.counted = r.figure(dir, "pids.current")
			if t.counted.exists() != nil {
				t.counted.Close()
				t.counted = figure{}
			}
		}
	}
	if t.dir, err = r.tree.Own(g, g.by); err != nil && t.counted.r == nil {
		return nil, err
	}
	return t, nil
}

// Listed reports whether the threads can be listed, not only counted.
func (t *Tasks) Listed() bool { return t.dir != "" }

// Count returns the number of threads.
func (t *Tasks) Count() (int, error) {
	if t.counted.r == nil {
		n := 0
		err := t.List(func(int) bool { n++; return true })
		return n, err
	}
	b, err := t.counted.read()
	if err != nil {
		return 0, err
	}
	n, err := parseFigure(b)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", t.counted.From(), err)
	}
	return int(min(n, 1<<30)), nil
}

// List calls visit for each thread until it returns false. It allocates only if
// there are cgroups below.
func (t *Tasks) List(visit func(tid int) bool) error {
	more := true
	var failed error
	list := func(dir string) {
		if err := t.r.listTasks(dir, t.group.by, func(tid int) bool { more = visit(tid); return more }); err != nil {
			failed = err
		}
	}
	list(t.dir)
	if failed != nil {
		if isGone(failed) && !isDir(t.dir) {
			return ErrGone
		}
		return fmt.Errorf("list the threads of cgroup %s: %w", t.group.Cgroup, failed)
	}
	if t.group.ContainerID == "" || childless(t.dir) {
		return nil
	}
	walkDirs(t.dir, func(path string, depth int) bool {
		if depth > 0 && more {
			list(filepath.Join(t.dir, path))
		}
		return more
	})
	return nil // what vanished meanwhile has no threads
}

// listTasks calls visit for each thread of one cgroup.
func (r *Reader) listTasks(dir string, h Hierarchy, visit func(tid int) bool) error {
	name := "/tasks"
	if h == V2Tree {
		name = "/cgroup.threads"
	}
	f, err := os.Open(dir + name)
	if err != nil {
		return err
	}
	defer f.Close()
	kept := 0
	for {
		n, err := f.Read(r.buf[kept:])
		if n <= 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			return nil
		}
		b := r.buf[:kept+n]
		for {
			line, rest, ok := bytes.Cut(b, []byte("\n"))
			if !ok {
				break
			}
			if tid, _, ok := parseUint(line); ok && tid > 0 && tid <= maxPID && !visit(int(tid)) {
				return nil
			}
			b = rest
		}
		kept = copy(r.buf, b)
		if kept == len(r.buf) {
			return fmt.Errorf("malformed %s", strings.TrimPrefix(name, "/"))
		}
	}
}

// From returns the path of the file that is read.
func (t *Tasks) From() string {
	if t.counted.r != nil {
		return t.counted.From()
	}
	if t.group.by == V2Tree {
		return filepath.Join(t.dir, "cgroup.threads")
	}
	return filepath.Join(t.dir, "tasks")
}

// Close closes the file.
func (t *Tasks) Close() {
	if t.counted.r != nil {
		t.counted.Close()
	}
}
