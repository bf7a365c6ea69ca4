// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

// Target names processes. Exactly one field is set.
type Target struct {
	// PID is one process, as the procfs below the root numbers it.
	PID int
	// Executable is a glob over the path of the program that a process runs, as
	// the process itself sees it: * matches within a name, ** across names.
	Executable string
	// Cgroup is a glob over paths below the cgroup root; what is under a matched
	// cgroup is matched too.
	Cgroup string
	// ContainerID is a container's id, or a prefix of it that has at least
	// cgroup.MinPrefix digits.
	ContainerID string
}

// String names the target as its key and value.
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

// Validate says what is wrong, by the configuration key.
func (t Target) Validate() error {
	_, err := compile(t)
	return err
}

// target is a Target made ready to match.
type target struct {
	Target
	cgroup *cgroup.Glob
}

// maxPID is the kernel's PID_MAX_LIMIT.
const maxPID = 4 << 20

func compile(t Target) (target, error) {
	c := target{Target: t}
	set := 0
	for _, is := range []bool{t.PID != 0, t.Executable != "", t.Cgroup != "", t.ContainerID != ""} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		return c, fmt.Errorf("exactly one of pid, executable, cgroup and container_id is needed, %d are set", set)
	case t.PID < 0 || t.PID > maxPID:
		return c, fmt.Errorf("pid: %d is no process: it must be between 1 and %d", t.PID, maxPID)
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
	if !strings.HasPrefix(glob, "/") && !strings.HasPrefix(glob, "**/") {
		return fmt.Errorf("executable: %q cannot match: a program's path begins with a slash; begin with / or **/", glob)
	}
	if !doublestar.ValidatePattern(glob) {
		return fmt.Errorf("executable: %q is no glob: * matches within a name, ** across names, [a-z] and {a,b} alternatives, \\ takes the next character as it is", glob)
	}
	return nil
}

func validateContainerID(id string) error {
	if len(id) < cgroup.MinPrefix {
		return fmt.Errorf("container_id: %q is too short: at least the first %d characters are needed", id, cgroup.MinPrefix)
	}
	if strings.ContainsAny(id, "/ \t\n*") {
		return fmt.Errorf("container_id: %q is no container's id, nor the beginning of one", id)
	}
	return nil
}

// matches says whether the target names a process with these facts.
func (t *target) matches(pid int, f *facts) bool {
	switch {
	case t.PID != 0:
		return pid == t.PID
	case t.Executable != "":
		return f.path != "" && (f.path == t.Executable || doublestar.MatchUnvalidated(t.Executable, f.path))
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

// names says whether the target means a process itself, rather than a group
// that the process happens to be in.
func (t *target) names() bool { return t.PID != 0 || t.Executable != "" }

// Matcher tells the processes that are to be sampled from those that are not.
// It is immutable.
type Matcher struct {
	targets []target
	own     int
}

// NewMatcher returns a matcher for targets; none means every process. The
// process own, which is the collector, is left out unless a pid or an
// executable names it.
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

// match says whether a process is to be sampled.
func (m *Matcher) match(pid int, f *facts) bool {
	if m == nil {
		return true
	}
	if len(m.targets) == 0 {
		return pid != m.own
	}
	for i := range m.targets {
		t := &m.targets[i]
		if (pid != m.own || t.names()) && t.matches(pid, f) {
			return true
		}
	}
	return false
}
