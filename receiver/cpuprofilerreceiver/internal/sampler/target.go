// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"fmt"
	"strings"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// TargetConfig is one thing to sample. Exactly one key is set.
type TargetConfig struct {
	// PID is a process, as the collector's own pid namespace numbers it.
	PID int `mapstructure:"pid"`
	// Executable is a glob over the processes' own executables.
	Executable string `mapstructure:"executable"`
	// Cgroup is a glob over paths below the cgroup root; everything under a match is
	// sampled too.
	Cgroup string `mapstructure:"cgroup"`
	// ContainerID is a container's id or a prefix of it, 12 characters or more.
	ContainerID string `mapstructure:"container_id"`

	// prevents unkeyed literal initialization
	_ struct{}
}

// Check returns what is wrong with it.
func (t TargetConfig) Check() error {
	var set []string
	for _, k := range []struct {
		key string
		set bool
	}{
		{"pid", t.PID != 0},
		{"executable", t.Executable != ""},
		{"cgroup", t.Cgroup != ""},
		{"container_id", t.ContainerID != ""},
	} {
		if k.set {
			set = append(set, k.key)
		}
	}
	if len(set) != 1 {
		got := "none"
		if len(set) > 0 {
			got = strings.Join(set, " and ")
		}
		return fmt.Errorf("needs exactly one of pid (above 0), executable, cgroup, container_id; %s is set", got)
	}
	return t.Target().Validate()
}

// Target returns it as processes are matched with it.
func (t TargetConfig) Target() processes.Target {
	return processes.Target{PID: t.PID, Executable: t.Executable, Cgroup: t.Cgroup, ContainerID: t.ContainerID}
}
