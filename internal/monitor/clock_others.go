// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package monitor

import (
	"time"

	"github.com/hotprofile/hotprofile/internal/cgroup"
)

type systemClocks struct{}

func (systemClocks) process(int) (time.Duration, error) { return 0, cgroup.NeedsLinux }

func (systemClocks) ticks() uint64 { return 0 }
