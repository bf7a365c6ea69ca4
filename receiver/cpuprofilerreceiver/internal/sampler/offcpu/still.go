// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package offcpu

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

// NewStill returns a Still that reads below root, where the host's root is
// mounted.
func NewStill(root string) Still {
	buf := make([]byte, 8192)
	return func(pid, tid int) (switches uint64, running, ok bool) {
		f, err := os.Open(filepath.Join(root, "proc", strconv.Itoa(pid), "task", strconv.Itoa(tid), "status"))
		if err != nil {
			return 0, false, !os.IsNotExist(err)
		}
		defer f.Close()
		n, err := f.Read(buf)
		if err != nil {
			return 0, false, false // ended meanwhile
		}
		return parseStatus(buf[:n])
	}
}

// parseStatus finds in a thread's status how often it has left its CPU, and
// whether it runs. A dead one is not ok.
func parseStatus(status []byte) (switches uint64, running, ok bool) {
	ok = true
	for line := range bytes.Lines(status) {
		key, value, found := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		if !found || len(value) == 0 {
			continue
		}
		switch string(key) {
		case "State":
			running = value[0] == 'R'
			ok = value[0] != 'Z' && value[0] != 'X'
		case "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches":
			n, err := strconv.ParseUint(string(value), 10, 64)
			if err == nil {
				switches += n
			}
		}
	}
	return switches, running, ok
}
