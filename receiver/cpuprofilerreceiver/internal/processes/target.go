// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/globs"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// Target selects processes to sample. Exactly one field is set.
type Target struct {
	// PID is the pid of a process in the procfs below the root.
	PID int `mapstructure:"pid"`
	// Executable is a glob for the path of the program that a process runs, as the process
	// itself sees it. * does not match a slash, but ** does.
	Executable string `mapstructure:"executable"`
	// Cgroup is a glob for paths below the cgroup root. All cgroups below a matched cgroup
	// match too.
	Cgroup string `mapstructure:"cgroup"`
	// ContainerID is a container's id, or a prefix of at least cgroup.MinPrefix digits.
	ContainerID string `mapstructure:"container_id"`
}

// String returns the target's key and value.
func (t Target) String() string {
	switch {
	case t.PID != 0:
		return "pid " + strconv.Itoa(t.PID)
	case t.Executable != "":
		return "executable " + t.Executable
	case t.Cgroup != "":
		return "cgroup " + t.Cgroup
	default:
		return "container_id " + t.ContainerID
	}
}

// Check returns an error that names the invalid key. It is not called Validate, because the
// collector calls Validate by itself.
func (t Target) Check() error {
	_, err := compile(t)
	return err
}

// target is a compiled Target.
type target struct {
	Target
	cgroup *cgroup.Glob
}

func compile(t Target) (target, error) {
	c := target{Target: t}
	var set []string
	for _, only := range []Target{{PID: t.PID}, {Executable: t.Executable}, {Cgroup: t.Cgroup}, {ContainerID: t.ContainerID}} {
		if only != (Target{}) {
			key, _, _ := strings.Cut(only.String(), " ")
			set = append(set, key)
		}
	}
	switch {
	case len(set) != 1:
		return c, fmt.Errorf("needs exactly one of pid (above 0), executable, cgroup, container_id; %s is set", cmp.Or(strings.Join(set, " and "), "none"))
	case t.PID < 0 || t.PID > procfs.MaxPID:
		return c, fmt.Errorf("pid: %d is not a pid: it must be between 1 and %d", t.PID, procfs.MaxPID)
	case t.Executable != "":
		return c, validateExecutable(t.Executable)
	case t.Cgroup != "":
		glob, err := cgroup.ParseGlob(t.Cgroup)
		if err != nil {
			return c, fmt.Errorf("cgroup: %w", err)
		}
		c.cgroup = glob
	case t.ContainerID != "":
		return c, validateContainerID(t.ContainerID)
	}
	return c, nil
}

func validateExecutable(glob string) error {
	glob = filepath.ToSlash(glob)
	if !filepath.IsAbs(glob) && !strings.HasPrefix(glob, "**/") {
		return fmt.Errorf("executable: %q matches no path, since paths begin with a slash, or with a drive on Windows: begin with / or **/", glob)
	}
	if err := globs.Check(glob); err != nil {
		return fmt.Errorf("executable: %w", err)
	}
	return nil
}

func validateContainerID(id string) error {
	if len(id) < cgroup.MinPrefix {
		return fmt.Errorf("container_id: %q is too short: at least the first %d characters are needed", id, cgroup.MinPrefix)
	}
	if strings.ContainsAny(id, "/ \t\n*") {
		return fmt.Errorf("container_id: %q is not a container id or a prefix of one", id)
	}
	return nil
}

// matches reports whether the target matches the process pid with the facts f.
func (t *target) matches(pid int, f *facts) bool {
	switch {
	case t.PID != 0:
		return pid == t.PID
	case t.Executable != "":
		return f.path != "" && globs.Match(filepath.ToSlash(t.Executable), filepath.ToSlash(f.path))
	case t.cgroup != nil:
		for _, h := range [...]cgroup.Hierarchy{cgroup.V2Tree, cgroup.CPU, cgroup.Systemd} {
			if f.paths[h] != "" && t.cgroup.Match(f.paths[h]) {
				return true
			}
		}
		return false
	default:
		return f.group.ContainerID != "" && strings.HasPrefix(f.group.ContainerID, t.ContainerID)
	}
}

// Matcher decides which processes are sampled. It is immutable.
type Matcher struct {
	targets []target
	own     int
}

// NewMatcher returns a matcher for targets. own is the pid of the collector. Without
// targets, every process except the collector matches. With targets, the collector
// matches only targets that name a pid or an executable.
func NewMatcher(targets []Target, own int) (*Matcher, error) {
	m := &Matcher{own: own}
	var errs []error
	for i, t := range targets {
		c, err := compile(t)
		if err != nil {
			errs = append(errs, fmt.Errorf("targets[%d]: %w", i, err))
			continue
		}
		m.targets = append(m.targets, c)
	}
	return m, errors.Join(errs...)
}

// match reports whether a process is sampled.
func (m *Matcher) match(pid int, f *facts) bool {
	if len(m.targets) == 0 {
		return pid != m.own
	}
	return slices.ContainsFunc(m.targets, func(t target) bool { return m.selects(&t, pid, f) })
}

// selects reports whether a target matches a process. The collector itself is matched only
// by targets that name a pid or an executable.
func (m *Matcher) selects(t *target, pid int, f *facts) bool {
	return (pid != m.own || t.PID != 0 || t.Executable != "") && t.matches(pid, f)
}
