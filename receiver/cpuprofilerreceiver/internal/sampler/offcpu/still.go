// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package offcpu

import (
	"strconv"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// newStill returns a still that reads below root, the folder where the host's root is
// mounted. The still belongs to one goroutine.
func newStill(root string) still {
	proc := procfs.At(root)
	var buf []byte
	return func(pid, tid int) (switches uint64, running, ok bool) {
		var err error
		buf, err = procfs.AppendFile(buf, proc.File(pid, "task/"+strconv.Itoa(tid)+"/status"), procfs.MaxStatus)
		if err != nil {
			return 0, false, !procfs.IsGone(err)
		}
		return parseStatus(buf)
	}
}

// parseStatus reads a thread's status file. It returns the number of times that the
// thread has left its CPU, and whether the thread is running. ok is false for a dead
// thread, and true if the file contains no state.
func parseStatus(status []byte) (switches uint64, running, ok bool) {
	s, err := procfs.ParseStatus(status)
	if err != nil {
		return 0, false, true
	}
	return s.Switches, s.State == 'R', s.State != 'Z' && s.State != 'X'
}
