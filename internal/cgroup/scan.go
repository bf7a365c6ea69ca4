// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/hotprofile/hotprofile/internal/globs"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

const (
	maxCgroups = 1 << 16 // maximum number of cgroups in one walk
	maxDepth   = 64      // maximum depth of one walk

	// maxAsked is the maximum number of processes of a cgroup that are read. The search ends
	// at the first process whose group has this cgroup.
	maxAsked = 64
)

// FindContainer returns the group of a container by its id, or by a prefix of at least
// [MinPrefix] digits. If the names of several cgroups contain the id, FindContainer
// returns the container's cgroup. See [Claim]. A prefix that matches several containers is
// an error, unless only one of their cgroups is outside delegated cgroups. FindContainer
// walks the whole tree, so callers should cache the result.
func (t *Tree) FindContainer(id string) (Group, bool, error) {
	if len(id) < MinPrefix {
		return Group{}, false, fmt.Errorf("container id %q is too short: at least %d digits are needed", id, MinPrefix)
	}
	type candidate struct {
		id, path string
		by       Hierarchy
		standing
	}
	var found []candidate // the best two, of different containers
	for h, tr := range t.identifying() {
		walkDirs(tr.dir, func(path string, _ int) bool {
			full, ok := ContainerID(path)
			switch {
			case !ok:
				return true // a container may be further down
			case len(full) < len(id) || full[:len(id)] != id:
				return false
			}
			c := candidate{id: full, path: path, by: h}
			if c.standing, ok = t.standing(h, path); !ok {
				return false
			}
			found = append(found, c)
			slices.SortFunc(found, func(a, b candidate) int { return a.compare(b.standing) })
			found = slices.CompactFunc(found, func(a, b candidate) bool { return a.id == b.id })
			found = found[:min(len(found), 2)]
			return false // all cgroups below are inside this container
		})
	}
	switch {
	case len(found) == 0:
		return Group{}, false, nil
	case len(found) == 2 && found[0].delegated == found[1].delegated:
		return Group{}, false, fmt.Errorf("container id %q is a prefix of several containers, of %.16s and %.16s among them: name more digits", id, found[0].id, found[1].id)
	}
	return t.groupAt(found[0].by, found[0].path), true, nil
}

// groupAt returns the group of a cgroup. It uses the paths of one of the
// cgroup's processes. Without such a process, it uses the cgroups with the same
// path in the other hierarchies.
func (t *Tree) groupAt(h Hierarchy, path string) Group {
	if t.mode != V2 {
		pids, _ := processesBelow(t.dir(h, path), maxDepth, maxAsked)
		for pid := range pids {
			if p, err := t.PathsOf(pid); err == nil {
				if g := t.GroupOf(p); g.by == h && g.Cgroup == path {
					return g
				}
			}
		}
	}
	var p Paths
	for other, tr := range t.trees {
		if tr != nil && (Hierarchy(other) == h || isFile(filepath.Join(tr.dir, path, "cgroup.procs"))) {
			p[other] = path
		}
	}
	if id, _, ok := ContainerIn(path); ok {
		return containerGroup(p, h, id, path)
	}
	return Group{ID: path, Cgroup: path, Paths: p, by: h}
}

// A Scanner lists the groups of a tree repeatedly. It lists the directories each time, but
// rarely reads the processes of a cgroup whose groups are known. It belongs to one
// goroutine.
type Scanner struct {
	tree  *Tree
	round uint32
	known [numHierarchies]map[string]*known
	// claimed maps the cgroup of each claim to the container's id. It contains the claims
	// that the last call of Groups found, at most maxClaims.
	claimed map[string]string
	claims  []Claim
}

const maxClaims = 1024 // per call of Groups

// Claims returns the claims that the last call of Groups found, at most 1024.
func (s *Scanner) Claims() []Claim { return s.claims }

// known is the state of one cgroup, kept between rounds.
type known struct {
	groups []Group
	round  uint32 // when the cgroup was last seen
	phase  uint32 // spreads the reads over the rounds
}

// The processes of a cgroup are read again every askEvery rounds, because their groups
// may change. The group of a container's cgroup does not change, because the cgroup's
// name contains the container's id. Such a cgroup is read every askContainerEvery rounds,
// to check whether it still has processes.
const (
	askEvery          = 8
	askContainerEvery = 64
)

// NewScanner returns a scanner without known cgroups.
func (t *Tree) NewScanner() *Scanner { return &Scanner{tree: t} }

// Groups returns all groups that have processes, sorted by ID. It omits groups that
// vanish during the call. A cgroup whose processes have ended is still listed until the
// cgroup is removed or its processes are read again.
func (s *Scanner) Groups() ([]Group, error) {
	s.round++
	groups := map[string]Group{}
	s.claimed, s.claims = map[string]string{}, nil
	var failed error
	for h, tr := range s.tree.identifying() {
		if s.known[h] == nil {
			s.known[h] = map[string]*known{}
		}
		if err := canList(tr.dir); err != nil {
			failed = fmt.Errorf("list the cgroups of %s: %w", h, err)
			continue
		}
		whole := walkDirs(tr.dir, func(path string, _ int) bool {
			if path == "" {
				return true
			}
			id, inContainer := ContainerID(path)
			if g, listed := groups[id]; inContainer && listed && g.Paths[h] == path {
				return false // already found in another hierarchy
			}
			for _, g := range s.groupsIn(h, path, inContainer) {
				if other, listed := groups[g.ID]; listed {
					g = s.settle(other, g)
				}
				groups[g.ID] = g
			}
			return !inContainer
		})
		if !whole {
			failed = fmt.Errorf("list the cgroups of %s: more than %d, or deeper than %d: the rest is not watched", tr.dir, maxCgroups, maxDepth)
		}
		maps.DeleteFunc(s.known[h], func(_ string, k *known) bool { return k.round != s.round })
	}
	for path, id := range s.claimed {
		s.claims = append(s.claims, Claim{ContainerID: id, Cgroup: path, Container: groups[id].Cgroup})
	}
	return slices.SortedFunc(maps.Values(groups), func(a, b Group) int { return cmp.Compare(a.ID, b.ID) }), failed
}

// settle returns the container's group among two groups with the same id. If the other
// group is a different cgroup, settle records it as a claim.
func (s *Scanner) settle(a, b Group) Group {
	if a.ContainerID == "" || a.Same(b) {
		return a
	}
	of, known := s.tree.standing(a.by, a.Cgroup)
	if claim, ok := s.tree.standing(b.by, b.Cgroup); ok && (!known || claim.compare(of) < 0) {
		a, b = b, a
	}
	if len(s.claimed) < maxClaims {
		s.claimed[b.Cgroup] = b.ContainerID
	}
	return a
}

func canList(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return d.Close()
}

func (s *Scanner) groupsIn(h Hierarchy, path string, inContainer bool) []Group {
	k := s.known[h][path]
	every := uint32(askEvery)
	if inContainer {
		every = askContainerEvery
	}
	if k != nil && (s.round+k.phase)%every != 0 {
		k.round = s.round
		return k.groups
	}
	found := s.tree.groupsIn(h, path, inContainer)
	switch {
	case len(found) == 0:
		delete(s.known[h], path) // read each round, because its first process may start at any time
	case k != nil:
		k.groups, k.round = found, s.round
	default:
		s.known[h][path] = &known{groups: found, round: s.round, phase: uint32(len(s.known[h]))}
	}
	return found
}

// groupsIn returns the groups of the processes in one cgroup. With only a v2 tree, the
// group is the cgroup itself. Otherwise groupsIn reads the paths of processes until it
// finds a process whose group is the cgroup.
func (t *Tree) groupsIn(h Hierarchy, path string, inContainer bool) (groups []Group) {
	dir := t.dir(h, path)
	if t.mode == V2 {
		deepest := 0
		if inContainer {
			deepest = maxDepth
		}
		if populated(dir, 0, deepest) {
			groups = append(groups, t.GroupOf(Paths{V2Tree: path}))
		}
		return groups
	}
	pids, _ := processesIn(dir, maxAsked)
	if len(pids) == 0 && inContainer {
		below, _ := processesBelow(dir, maxDepth, maxAsked)
		for pid := range below {
			pids = append(pids, pid)
		}
	}
	for _, pid := range pids {
		p, err := t.PathsOf(pid)
		if err != nil {
			continue
		}
		g := t.GroupOf(p)
		if g.ProcessOnly() {
			continue
		}
		if !slices.ContainsFunc(groups, func(other Group) bool { return other.ID == g.ID }) {
			groups = append(groups, g)
		}
		if g.Cgroup == path {
			return groups
		}
	}
	return groups
}

// populated reports whether a cgroup at the levels from first to last has processes. dir
// is level 0, and its children are level 1.
func populated(dir string, first, last int) bool {
	found := false
	walkDirs(dir, func(path string, depth int) bool {
		if depth >= first && !found {
			pids, _ := processesIn(filepath.Join(dir, path), 1)
			found = len(pids) > 0
		}
		return depth < last && !found
	})
	return found
}

// Match returns the outermost cgroups whose paths match a glob, as groups sorted by path.
// Each group includes all cgroups below it.
func (t *Tree) Match(glob *Glob) ([]Group, error) {
	found := map[string]Group{}
	var failed error
	for h, tr := range t.identifying() {
		whole := walkDirs(tr.dir, func(path string, _ int) bool {
			if path == "" || !globs.Match(glob.pattern, path) {
				return true
			}
			if _, known := found[path]; !known {
				found[path] = t.groupAt(h, path)
			}
			return false
		})
		if !whole {
			failed = fmt.Errorf("look for cgroups that match %s in %s: more than %d, or deeper than %d", glob, tr.dir, maxCgroups, maxDepth)
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b Group) int { return cmp.Compare(a.Cgroup, b.Cgroup) }), failed
}

// PerfDir returns the directory of a group in the hierarchy that perf events are attached
// to. This is v1 perf_event if mounted, and the v2 tree otherwise. The events also cover
// all cgroups below the directory. The error is an [Unavailable] if the group has no
// separate cgroup in this hierarchy.
func (t *Tree) PerfDir(g Group) (string, error) {
	h, ok := t.owner(PerfEvent)
	if !ok {
		return "", NotMounted
	}
	if h == g.by && g.Cgroup != "/" && g.Cgroup != "" {
		return t.dir(h, g.Cgroup), nil // includes all cgroups below, as documented
	}
	return t.Own(g, h)
}

// walkDirs calls visit for dir and the directories below it, parents first. It descends
// into a directory only if visit returns true, and skips unreadable directories. walkDirs
// returns false if it omitted directories because of a limit.
func walkDirs(dir string, visit func(path string, depth int) bool) bool {
	left := maxCgroups
	return walkFrom(dir, "", 0, &left, visit)
}

func walkFrom(dir, path string, depth int, left *int, visit func(path string, depth int) bool) bool {
	if *left == 0 || depth > maxDepth {
		return false
	}
	*left--
	if !visit(path, depth) {
		return true
	}
	full := dir + path
	if childless(full) {
		return true
	}
	entries, err := os.ReadDir(full)
	if err != nil {
		return true
	}
	whole := true
	for _, e := range entries {
		if e.IsDir() {
			whole = walkFrom(dir, path+"/"+e.Name(), depth+1, left, visit) && whole
		}
	}
	return whole
}

func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

// isGone reports whether err means that a process or cgroup no longer exists. The kernel
// returns ESRCH or ENODEV for files that were opened before the process or cgroup ended.
func isGone(err error) bool { return procfs.IsGone(err) || errors.Is(err, syscall.ENODEV) }

// isUnsupported reports whether err is EOPNOTSUPP. The kernel returns EOPNOTSUPP for
// cgroup.procs of a threaded cgroup, because the domain cgroup above lists the processes.
// It also returns EOPNOTSUPP if the pressure of cgroups is disabled.
func isUnsupported(err error) bool { return errors.Is(err, syscall.EOPNOTSUPP) }
