// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package cgroup reads the host's control groups. It finds the mounted hierarchies (v1,
// hybrid, v2), the cgroup of a process in each hierarchy, and the process's [Group]. It
// reads the CPU time, the memory and the limits of a group.
//
// All files are read below a root directory. A collector in a container can therefore read
// the host's trees through a mount of the host's root. Paths that the kernel shows relative
// to a private cgroup namespace are resolved against the host's tree. The size of every
// read is bounded.
//
// A [Tree] is immutable and safe for concurrent use. A [Reader] keeps files open between
// reads and belongs to one goroutine.
package cgroup

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// A Tree is the set of the host's cgroup hierarchies below a root directory. It is
// immutable.
type Tree struct {
	root   string
	procfs procfs.FS
	mode   Mode
	// trees contains nil for each hierarchy that is not mounted.
	trees [numHierarchies]*mount
	// lost is the reason why this process's own cgroup was not found. It is empty if the
	// cgroup was found.
	lost string
}

// Open finds the hierarchies below root. root is the mount point of the host's root,
// which is "/" on the host itself.
func Open(root string) (*Tree, error) {
	if !supported {
		return nil, NeedsLinux
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	if resolved, err := filepath.EvalSymlinks(root); err == nil {
		root = resolved
	}
	below, all, err := findMounts(root)
	if err != nil {
		return nil, err
	}
	t := &Tree{root: root, procfs: procfs.At(root)}
	for _, m := range below {
		for _, h := range m.hierarchies {
			if old := t.trees[h]; old == nil || better(m, *old) {
				t.trees[h] = &m
			}
		}
	}
	for _, tr := range t.trees {
		if tr == nil || tr.up == 0 {
			continue
		}
		if tr.above = tr.findNamespaceRoot(all); tr.above == nil {
			t.lost = fmt.Sprintf("the collector is in a private cgroup namespace, and its own cgroup was not found %d levels below %s: "+
				"run it in the host's pid namespace, or in the host's cgroup namespace", tr.up, tr.dir)
		}
	}
	switch v1 := slices.ContainsFunc(t.trees[CPU:], func(m *mount) bool { return m != nil }); {
	case !v1:
		t.mode = V2
	case t.trees[V2Tree] != nil:
		t.mode = Hybrid
	default:
		t.mode = V1
	}
	return t, nil
}

// better reports whether mount a covers more of its hierarchy than mount b. If both
// mounts cover the same part, the mount with the shorter path is better.
func better(a, b mount) bool {
	return cmp.Or(cmp.Compare(b.up, a.up), cmp.Compare(len(a.rest), len(b.rest)), cmp.Compare(len(a.dir), len(b.dir))) < 0
}

// Mode returns the kinds of hierarchies that were found.
func (t *Tree) Mode() Mode { return t.mode }

// Root returns the absolute path that the tree was opened at.
func (t *Tree) Root() string { return t.root }

// Mount returns the directory that a hierarchy is read from. It is empty if the hierarchy
// is not mounted.
func (t *Tree) Mount(h Hierarchy) string {
	if tr := t.trees[h]; tr != nil {
		return tr.dir
	}
	return ""
}

// Limited returns one line that explains why parts of the host are not visible, with a
// remedy. The line is empty if all parts are visible.
func (t *Tree) Limited() string {
	if t.lost != "" {
		return t.lost
	}
	for h, tr := range t.identifying() {
		if tr.rest != "" || !wholeTree(h, tr.dir) {
			return fmt.Sprintf("only the cgroups of the collector's own container can be seen in %s: mount the host's root, with its submounts, into the container and name it in root_path", tr.dir)
		}
	}
	return ""
}

// wholeTree reports whether dir is the root of a hierarchy. In a private cgroup namespace,
// a deeper cgroup is mounted as if it were the root.
func wholeTree(h Hierarchy, dir string) bool {
	if h == V2Tree {
		return !isFile(filepath.Join(dir, "cgroup.events"))
	}
	return isFile(filepath.Join(dir, "release_agent"))
}

// PathsOf returns the cgroup paths of a process. pid is the process's id in the procfs
// below root.
func (t *Tree) PathsOf(pid int) (Paths, error) {
	return t.readPaths("process", pid, t.procfs.File(pid, "cgroup"))
}

// PathsOfThread returns the cgroup paths of a thread of a process.
func (t *Tree) PathsOfThread(pid, tid int) (Paths, error) {
	return t.readPaths("thread", tid, t.procfs.File(pid, "task/"+strconv.Itoa(tid)+"/cgroup"))
}

func (t *Tree) readPaths(what string, id int, file string) (p Paths, err error) {
	if p, err = procfs.ParseFile(file, MaxPaths, t.ParsePaths); err != nil {
		err = fmt.Errorf("find the cgroup of %s %d: %w", what, id, err)
	}
	return p, err
}

// ErrOutside is returned for a process whose cgroup is in a part of the host's tree that is
// not mounted below root.
var ErrOutside = errors.New("its cgroup is outside of the collector's cgroup namespace: mount the host's root and name it in root_path")

// ParsePaths parses the content of a /proc/PID/cgroup.
func (t *Tree) ParsePaths(b []byte) (Paths, error) {
	var p Paths
	for line := range bytes.Lines(b) {
		f := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(f) != 3 {
			return Paths{}, fmt.Errorf("malformed line %q", line)
		}
		path := strings.TrimSuffix(f[2], " (deleted)")
		if f[0] == "0" && f[1] == "" {
			if err := t.setPath(&p, V2Tree, path); err != nil {
				return Paths{}, err
			}
			continue
		}
		for name := range strings.SplitSeq(f[1], ",") {
			if h, ok := hierarchyOf(name); ok {
				if err := t.setPath(&p, h, path); err != nil {
					return Paths{}, err
				}
			}
		}
	}
	if p == (Paths{}) {
		return p, errors.New("no line of a mounted hierarchy")
	}
	return p, nil
}

func (t *Tree) setPath(p *Paths, h Hierarchy, path string) error {
	tr := t.trees[h]
	if tr == nil {
		return nil
	}
	at, err := parseNamespacePath(path)
	if err != nil {
		return err
	}
	p[h], err = tr.resolve(at)
	return err
}

// resolve returns the path below the mount's directory. at is a path in this process's
// cgroup namespace, as the kernel shows it.
func (tr *mount) resolve(at namespacePath) (string, error) {
	var path string
	switch {
	case at.up == tr.up && Under(at.rest, tr.rest):
		path = at.rest[len(tr.rest):]
	case at.up < tr.up && tr.rest == "" && len(tr.above) == tr.up:
		for _, name := range tr.above[:tr.up-at.up] {
			path += "/" + name
		}
		path += at.rest
	default:
		return "", ErrOutside
	}
	if path == "" {
		path = "/"
	}
	return path, nil
}

// dir returns the directory of a path in a hierarchy.
func (t *Tree) dir(h Hierarchy, path string) string { return filepath.Join(t.trees[h].dir, path) }

// owner returns the hierarchy of a controller. This is the controller's v1 hierarchy if it
// is mounted, and otherwise the v2 tree, where the controller may be disabled.
func (t *Tree) owner(h Hierarchy) (Hierarchy, bool) {
	if t.trees[h] != nil {
		return h, true
	}
	return V2Tree, t.trees[V2Tree] != nil
}

// ownOf returns the hierarchy of a controller, and the directory of a group's own cgroup
// there. The error is an [Unavailable] if there is no such cgroup.
func (t *Tree) ownOf(g Group, controller Hierarchy) (h Hierarchy, dir string, err error) {
	h, ok := t.owner(controller)
	if !ok {
		return h, "", NotMounted
	}
	dir, err = t.Own(g, h)
	return h, dir, err
}

// findNamespaceRoot returns the names of the cgroups from a hierarchy's mounted root down
// to the root of this process's cgroup namespace, or nil if the namespace's root is not
// found. The kernel shows only the number of levels between the two roots, so the
// directory has to be searched for. If the namespace's root is also mounted, the directory
// has the same inode as this mount. Otherwise, the directory is the one that lists this
// process.
func (tr *mount) findNamespaceRoot(all []mount) []string {
	var own uint64
	for _, m := range all {
		if m.device == tr.device && m.namespacePath == (namespacePath{}) {
			own, _ = inode(m.dir)
		}
	}
	var found string
	walkDirs(tr.dir, func(path string, depth int) bool {
		if depth == tr.up && found == "" && tr.isOwn(path, own) {
			found = path
		}
		return found == "" && depth < tr.up
	})
	if found == "" {
		return nil
	}
	return strings.Split(found[1:], "/")
}

func (tr *mount) isOwn(path string, own uint64) bool {
	dir := filepath.Join(tr.dir, path)
	if own != 0 {
		ino, err := inode(dir)
		return err == nil && ino == own
	}
	pids, _ := processesBelow(dir, maxDepth, maxGroupProcesses)
	return pids[os.Getpid()]
}
