// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// Probe finds the rights by opening and closing one event of each kind: no rule
// of which capability and sysctl permit what holds for every kernel.
func Probe() Rights {
	cpu := 0
	if cpus, err := OnlineCPUs(); err == nil {
		cpu = cpus[0]
	}
	r := Rights{
		Own:                 try(scopeOwn, 0, -1, KernelExcluded),
		HostWide:            try(scopeHost, pidAll, cpu, KernelExcluded),
		ForeignPIDNamespace: foreign("pid", 4026531836),
	}
	r.Kernel = try(scopeKernel, 0, -1, KernelStacks)
	return r
}

func try(sc scope, pid, cpu int, kernel Kernel) error {
	fd, err := openEvent(features{}.sampling(int64(defaultPeriod), kernel, 0), pid, cpu, 0)
	if err != nil {
		return explain(sc, sc.String(), err)
	}
	return unix.Close(fd)
}

// explain turns the kernel's answer into what can be done about it.
func explain(sc scope, what string, err error) error {
	var ring *ringError
	switch {
	case errors.As(err, &ring):
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return missing(sc, what, look(err), err)
	case errors.Is(err, unix.ENOSYS):
		return fmt.Errorf("%s: %w: %w", what, ErrUnsupported, err)
	case errors.Is(err, unix.EMFILE):
		return fmt.Errorf("%s: all descriptors that RLIMIT_NOFILE permits are in use: %w", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// look finds out what decides about rights here.
func look(answer error) situation {
	s := situation{filtered: errors.Is(answer, unix.EPERM), perfmon: knowsPerfmon()}
	if n, err := procfs.Sysctl("kernel/perf_event_paranoid"); err == nil {
		s.paranoid = n
	}
	caps := effectiveCapabilities()
	s.havePerfmon = caps&(1<<unix.CAP_PERFMON) != 0
	s.haveAdmin = caps&(1<<unix.CAP_SYS_ADMIN) != 0
	s.userNamespace = foreign("user", 4026531837)
	return s
}

// knowsPerfmon asks for the capability in the bounding set: the kernel refuses
// the number of one that it does not know.
func knowsPerfmon() bool {
	_, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_PERFMON, 0, 0, 0)
	return err == nil
}

func effectiveCapabilities() uint64 {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return 0
	}
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective)
}

// foreign says that this process is not in the first namespace of a kind, by the
// number that the kernel gives that one: PROC_PID_INIT_INO and
// PROC_USER_INIT_INO of linux/proc_ns.h.
func foreign(kind string, first uint32) bool {
	link, err := os.Readlink("/proc/self/ns/" + kind)
	return err == nil && link != fmt.Sprintf("%s:[%d]", kind, first)
}
