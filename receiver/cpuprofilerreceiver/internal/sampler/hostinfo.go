// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"errors"
	"fmt"
	"os"

	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/hostid"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// HostInfo describes the sampled machine.
type HostInfo struct {
	// Root is the folder below which /proc and cgroups are read.
	Root string
	// Note explains why Root differs from root_path. It is empty if Root is root_path.
	Note string
	// Tree contains the machine's cgroups. It is nil if the cgroups cannot be read.
	Tree *cgroup.Tree
	// Name and ID are the machine's host.name and host.id.
	Name, ID string
}

// NewHostInfo reads the data of the machine whose root is mounted at rootPath.
func NewHostInfo(rootPath string, logger *zap.Logger) (HostInfo, error) {
	if at, err := os.Stat(rootPath); err != nil {
		return HostInfo{}, fmt.Errorf("root_path: the host's root has to be mounted there: %w", err)
	} else if !at.IsDir() {
		return HostInfo{}, fmt.Errorf("root_path: the host's root has to be mounted there: %s is not a directory", rootPath)
	}
	h := HostInfo{Name: hostid.Best(hostid.Names(rootPath)), ID: hostid.Best(hostid.IDs(rootPath))}
	h.Root, h.Note = processRoot(rootPath, os.Getpid())
	var err error
	if h.Tree, err = cgroup.Open(h.Root); err != nil && !errors.Is(err, cgroup.NeedsLinux) {
		// Processes are still sampled, but without their cgroups.
		logger.Warn("cgroups cannot be read", zap.Error(err))
	}
	return h, nil
}

// Invisible returns notes about data of the machine that the collector cannot see with these
// rights. The notes also explain how to make the data visible.
func (h *HostInfo) Invisible(rights perfevent.Rights) (notes []string) {
	if h.Note != "" {
		notes = append(notes, h.Note)
	}
	if h.Tree != nil && h.Tree.Limited() != "" {
		notes = append(notes, h.Tree.Limited())
	}
	if self, err := procfs.At("").Status(procfs.Self); err == nil && rights.HostWide == nil {
		notes = append(notes, hidden(self.Capabilities)...)
	}
	return notes
}

// processRoot returns the root whose /proc uses the pids of this process's own pid
// namespace. If this is not the requested root, note explains why. Perf events use the
// pids of the collector's own pid namespace. In the /proc of another namespace, these
// pids belong to other processes.
func processRoot(root string, pid int) (usable, note string) {
	proc := procfs.At(root)
	if proc.OwnPID() == pid {
		return root, ""
	}
	if _, err := os.Stat(proc.Path("stat")); err != nil {
		return "/", fmt.Sprintf("what root_path %s shows: no /proc is mounted below it (%v); mount the host's root there with its submounts (docker run -v /:%s:ro,rslave), or leave root_path out; the collector's own /proc is read instead", root, err, root)
	}
	return "/", fmt.Sprintf("what root_path %s shows: its /proc numbers processes otherwise than the collector's own pid namespace does, which alone can be sampled: run the collector in the host's (docker run --pid=host, hostPID: true)", root)
}

// These capabilities permit reading the data of other users' processes. Their numbers are
// defined in linux/capability.h.
const (
	capDACOverride   = 1
	capDACReadSearch = 2
	capSysPtrace     = 19
)

// hidden returns notes about data of other users' processes that a process with these
// effective capabilities cannot read. Each note names the missing capability.
func hidden(caps uint64) (notes []string) {
	has := func(c int) bool { return caps&(1<<c) != 0 }
	if !has(capSysPtrace) {
		notes = append(notes, "executables, environments and mappings of other users' processes: needs CAP_SYS_PTRACE")
	}
	if !has(capDACReadSearch) && !has(capDACOverride) {
		notes = append(notes, "names in program files that only other users may read: needs CAP_DAC_READ_SEARCH")
	}
	return notes
}
