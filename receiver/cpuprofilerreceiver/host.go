// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// processRoot returns the root below which /proc numbers processes as the kernel
// numbers them for this process, and, where that is not the one asked for, why.
// Perf events carry the numbers of the collector's own pid namespace: looked up
// in the /proc of another one they would be other processes.
func processRoot(root string, pid int) (usable, note string) {
	own, err := os.Readlink(filepath.Join(root, "proc/self"))
	if err == nil && own == strconv.Itoa(pid) {
		return root, ""
	}
	if _, err := os.Stat(filepath.Join(root, "proc/stat")); err != nil {
		return "/", fmt.Sprintf("what root_path %s shows: no /proc is mounted below it (%v); mount the host's root there with its submounts (docker run -v /:%s:ro,rslave), or leave root_path out; the collector's own /proc is read instead", root, err, root)
	}
	return "/", fmt.Sprintf("what root_path %s shows: its /proc numbers processes otherwise than the collector's own pid namespace does, which alone can be sampled: run the collector in the host's (docker run --pid=host, hostPID: true)", root)
}

// The capabilities that reading about other users' processes needs, by their
// numbers in linux/capability.h.
const (
	capDACOverride   = 1
	capDACReadSearch = 2
	capSysPtrace     = 19
)

// hidden says what of other users' processes this one cannot read, and what it
// needs to; empty where it can read all.
func hidden(status []byte) (notes []string) {
	var caps uint64
	for line := range bytes.Lines(status) {
		if value, ok := bytes.CutPrefix(line, []byte("CapEff:")); ok {
			n, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 16, 64)
			if err != nil {
				return nil
			}
			caps = n
		}
	}
	has := func(c int) bool { return caps&(1<<c) != 0 }
	if !has(capSysPtrace) {
		notes = append(notes, "executables, environments and mappings of other users' processes: needs CAP_SYS_PTRACE")
	}
	if !has(capDACReadSearch) && !has(capDACOverride) {
		notes = append(notes, "names in program files that only other users may read: needs CAP_DAC_READ_SEARCH")
	}
	return notes
}
