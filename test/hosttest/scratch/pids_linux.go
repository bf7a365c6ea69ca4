// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// SetPIDs limits the number of processes and threads in the cgroup.
func (c *Cgroup) SetPIDs(most int) error {
	for _, dir := range c.dirs {
		err := os.WriteFile(filepath.Join(dir, "pids.max"), []byte(strconv.Itoa(most)), 0)
		if err == nil {
			return nil
		}
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
			return fmt.Errorf("limit the processes of %s: %w", c.Path, err)
		}
	}
	return fmt.Errorf("no hierarchy here owns the pids controller, so the processes of %s cannot be limited", c.Path)
}

// PIDs returns the number of processes and threads in the cgroup. It
// returns 0 if SetPIDs does not work.
func (c *Cgroup) PIDs() int {
	for _, dir := range c.dirs {
		if text, err := os.ReadFile(filepath.Join(dir, "pids.current")); err == nil {
			n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
			return n
		}
	}
	return 0
}

// KillAtOnce ends all processes of the cgroup in one step, including processes that start
// at the same time. It needs cgroup v2 and Linux 5.14.
func (c *Cgroup) KillAtOnce() error {
	for _, dir := range c.dirs {
		// Only cgroup v2 has this file.
		err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
		if err == nil {
			return nil
		}
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
			return fmt.Errorf("killing all of %s at once: %w", c.Path, err)
		}
	}
	return fmt.Errorf("killing all of %s at once: it is in no v2 tree of a kernel from 5.14 on", c.Path)
}
