// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bottleneck

import "github.com/hotprofile/hotprofile/internal/cgroup"

func openStream() (stream, error) { return nil, cgroup.NeedsLinux }
