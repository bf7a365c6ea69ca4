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

// LimitMemory bounds what the cgroup's processes hold, the kernel's cache of
// their files included, which gives way first.
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

// OOMKills is how many of the cgroup's processes the kernel has killed for the
// limit.
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

// Freeze stops all of the cgroup's processes where they are, or lets them go on.
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
