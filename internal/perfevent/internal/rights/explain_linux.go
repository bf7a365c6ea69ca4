// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// Explain adds the attempted action and the rights that would permit it to the kernel's
// error. It returns nil if err is nil.
func Explain(sc Scope, what string, err error) error {
	_, unmapped := errors.AsType[*ring.MapError](err)
	switch {
	case err == nil:
		return nil
	case unmapped: // already names the missing right
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return missing(sc, what, examine(err), err)
	case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.E2BIG): // E2BIG: a field of perf_event_attr is unknown
		return fmt.Errorf("%s: %w", what, &UnsupportedError{Feature: "perf events", Needs: "Linux 4.8 or later with CONFIG_PERF_EVENTS", Err: err})
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("%s: all descriptors that RLIMIT_NOFILE permits are in use: %w", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// examine returns the facts that determine which right is missing on this host.
func examine(answer error) situation {
	s := situation{filtered: errors.Is(answer, unix.EPERM), perfmon: knowsPerfmon()}
	if n, err := procfs.Sysctl("kernel/perf_event_paranoid"); err == nil {
		s.paranoid = n
	}
	if self, err := procfs.At("").Status(procfs.Self); err == nil {
		s.havePerfmon = self.Capabilities&(1<<unix.CAP_PERFMON) != 0
		s.haveAdmin = self.Capabilities&(1<<unix.CAP_SYS_ADMIN) != 0
	}
	s.userNamespace = ForeignNamespace("user", 4026531837) // PROC_USER_INIT_INO
	return s
}

// knowsPerfmon reports whether the kernel knows CAP_PERFMON. The kernel refuses to look up
// an unknown capability in the bounding set.
func knowsPerfmon() bool {
	_, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_PERFMON, 0, 0, 0)
	return err == nil
}

// ForeignNamespace reports whether this process is outside the host's namespace of a kind.
// first is the inode number of the host's namespace in linux/proc_ns.h.
func ForeignNamespace(kind string, first uint32) bool {
	own, err := procfs.At("").Namespace(procfs.Self, kind)
	return err == nil && own.Inode != uint64(first)
}
