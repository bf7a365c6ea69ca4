// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/rights"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
)

// Probe finds the rights by opening and closing one event of each kind, because the required
// capabilities and sysctls differ between kernels. The result is not cached, because a
// sysctl may change it.
func Probe() Rights {
	cpu := 0
	if cpus, err := OnlineCPUs(); err == nil {
		cpu = cpus[0]
	}
	return Rights{
		Own:                 try(rights.Own, 0, -1, KernelExcluded),
		HostWide:            try(rights.Host, sys.AllProcesses, cpu, KernelExcluded),
		Kernel:              try(rights.Kernel, 0, -1, KernelStacks),
		ForeignPIDNamespace: rights.ForeignNamespace("pid", 4026531836), // PROC_PID_INIT_INO
	}
}

func try(sc rights.Scope, pid, cpu int, kernel Kernel) error {
	fd, err := sys.Open(attributes{kernel: kernel}.sampling(int64(defaultPeriod)), pid, cpu, 0)
	if err != nil {
		return rights.Explain(sc, sc.String(), err)
	}
	return unix.Close(fd)
}

// ClockOffset returns the offset to add to a Record's Time to get nanoseconds since the
// Unix epoch. The offset changes when the wall clock is set, so call ClockOffset regularly.
func ClockOffset() int64 {
	before := sys.Monotonic()
	wall := time.Now().UnixNano()
	after := sys.Monotonic()
	return wall - (before + (after-before)/2)
}
