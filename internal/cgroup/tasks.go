// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import "fmt"

// Tasks lists and counts the threads of a group.
type Tasks struct {
	r       *Reader
	group   Group
	dir     string // the group's own cgroup in the identifying hierarchy
	counted *Value // pids.current; nil if threads must be counted by listing
}

// OpenTasks opens the files for the threads of a group. The error is an [Unavailable] if
// the group has no separate cgroup.
func (r *Reader) OpenTasks(g Group) (*Tasks, error) {
	t := &Tasks{r: r, group: g}
	var err error
	if _, dir, err := r.tree.ownOf(g, PIDs); err == nil {
		t.counted, _ = openValue(r.part(dir, "pids.current", parseFigure))
	}
	if t.dir, err = r.tree.Own(g, g.by); err != nil && t.counted == nil {
		return nil, err
	}
	return t, nil
}

// Listed reports whether the threads can be listed, not only counted.
func (t *Tasks) Listed() bool { return t.dir != "" }

// Read returns the number of threads.
func (t *Tasks) Read() (n uint64, replaced bool, err error) {
	if t.counted != nil {
		return t.counted.Read()
	}
	err = t.List(func(int) bool { n++; return true })
	return n, false, err
}

// List calls visit for each thread until visit returns false.
func (t *Tasks) List(visit func(tid int) bool) error {
	more := true
	var failed error
	walkDirs(t.dir, func(path string, depth int) bool {
		if !more {
			return false
		}
		err := eachID(t.tasksFile(t.dir+path), t.r.buf, func(tid int) bool {
			more = tid == 0 || visit(tid) // 0 is a thread outside the visible pid namespaces
			return more
		})
		if depth == 0 { // cgroups below that vanished in the meantime have no threads
			failed = err
		}
		return failed == nil && depth < t.group.depth()
	})
	switch {
	case failed == nil:
		return nil
	case isGone(failed) && !isDir(t.dir):
		return ErrGone
	}
	return fmt.Errorf("list the threads of cgroup %s: %w", t.group.Cgroup, failed)
}

// tasksFile returns the path of the file that lists the threads of one cgroup.
func (t *Tasks) tasksFile(dir string) string {
	if t.group.by == V2Tree {
		return dir + "/cgroup.threads"
	}
	return dir + "/tasks"
}

// From returns the path of the file that is read.
func (t *Tasks) From() string {
	if t.counted != nil {
		return t.counted.From()
	}
	return t.tasksFile(t.dir)
}

// Close closes the file.
func (t *Tasks) Close() {
	if t.counted != nil {
		t.counted.Close()
	}
}
