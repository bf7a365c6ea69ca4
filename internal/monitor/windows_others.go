// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package monitor

import (
	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// list is empty, because the list of processes is only read on Windows.
type list struct{}

func newList() (*list, error) { return nil, cgroup.NeedsLinux }

func (*list) clock(procfs.Process) (counter, error) { return nil, cgroup.NeedsLinux }

// ofWindows is empty, because its meters need Windows.
var ofWindows map[string]func(*Watcher) meter
