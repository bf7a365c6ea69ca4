// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package peers

import (
	"errors"
	"os"
	"time"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

var errNotLinux = errors.New("network namespaces need Linux")

func fileID(string) (nsID, error) { return nsID{}, errNotLinux }

func statID(*os.File) (nsID, error) { return nsID{}, errNotLinux }

func socketsOf(procfs.FS, int, map[uint32]bool, time.Time) bool { return false }
