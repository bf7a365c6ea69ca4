// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package symbolizer

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/mappedfile"
)

// perfMapSlack is the time by which a perf map may seem older than its process, because the
// kernel uses different clocks for processes and files.
const perfMapSlack = 2 * time.Second

// openPerfMap opens /tmp/perf-PID.map in the root directory of a process. PID is the
// process's pid in its innermost pid namespace. Because any user may write to /tmp, the
// file must be a regular file of the process's user or of root, and not older than the
// process.
func openPerfMap(root string, pid int) (*os.File, mappedfile.ID, error) {
	proc := procfs.At(root)
	self, err := proc.Status(pid)
	if err != nil {
		return nil, mappedfile.ID{}, fmt.Errorf("reading the pid and user of process %d: %w", pid, err)
	}
	path := fmt.Sprintf("/tmp/perf-%d.map", self.PID)
	f, id, err := mappedfile.OpenChecked(path, func() (int, error) { return mappedfile.OpenInRoot(root, pid, path) }, func(st *unix.Stat_t) error {
		if st.Uid != 0 && !slices.Contains(self.UIDs[:], st.Uid) {
			return fmt.Errorf("it belongs to user %d, who is not the process's", st.Uid)
		}
		now, err := proc.Process(pid)
		if err == nil && time.Unix(0, st.Mtim.Nano()).Before(procfs.TimeOf(procfs.BootTime(), now.Start).Add(-perfMapSlack)) {
			return errNoMap // the file of an earlier process with that pid
		}
		return nil
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, mappedfile.ID{}, errNoMap
	case err != nil:
		return nil, mappedfile.ID{}, fmt.Errorf("opening %s of process %d in its root: %w", path, pid, err)
	}
	id.Size, id.Modified, id.Changed = 0, 0, 0 // these change when the file grows
	return f, id, nil
}

// runtimeOf returns the language runtime whose library a process has mapped.
func runtimeOf(root string, pid int) samples.FrameType {
	maps, err := procfs.ReadFile(procfs.At(root).File(pid, "maps"), procfs.MaxMaps)
	if err != nil && !errors.Is(err, procfs.ErrTooLarge) {
		return ""
	}
	return runtimeIn(maps)
}
