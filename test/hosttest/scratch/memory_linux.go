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

// LimitMemory limits the memory of the cgroup's processes. The limit includes the page
// cache of their files, which the kernel reclaims first.
func (c *Cgroup) LimitMemory(bytes int64) error {
	if c.memory == "" {
		return fmt.Errorf("no hierarchy here owns the memory controller, so %s cannot have a limit", c.Path)
	}
	file := "memory.limit_in_bytes"
	if c.memory == c.unified {
		file = "memory.max"
	}
	if err := os.WriteFile(filepath.Join(c.memory, file), []byte(strconv.FormatInt(bytes, 10)), 0); err != nil {
		return fmt.Errorf("limit the memory of %s: %w", c.Path, err)
	}
	return nil
}

// OOMKills returns the number of the cgroup's processes that the kernel has killed
// because of the memory limit.
func (c *Cgroup) OOMKills() (int, error) {
	file := "memory.oom_control"
	if c.memory == c.unified {
		file = "memory.events"
	}
	content, err := os.ReadFile(filepath.Join(c.memory, file))
	if err != nil {
		return 0, fmt.Errorf("read what memory has cost %s: %w", c.Path, err)
	}
	for line := range strings.Lines(string(content)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			return strconv.Atoi(n)
		}
	}
	return 0, fmt.Errorf("read what memory has cost %s: %s has no oom_kill", c.Path, file)
}

// Freeze stops or continues all processes of the cgroup.
func (c *Cgroup) Freeze(on bool) error {
	if c.unified == "" {
		return errors.New("no cgroup v2 tree is mounted, so that cgroups cannot be frozen")
	}
	value := "0"
	if on {
		value = "1"
	}
	if err := os.WriteFile(filepath.Join(c.unified, "cgroup.freeze"), []byte(value), 0); err != nil {
		return fmt.Errorf("freeze %s: %w", c.Path, err)
	}
	return nil
}
