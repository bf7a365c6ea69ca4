// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"fmt"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// OnlineCPUs lists the CPUs that are online, in ascending order.
func OnlineCPUs() ([]int, error) {
	cpus, err := procfs.ParseFile("/sys/devices/system/cpu/online", 64<<10, parseCPUList)
	if err != nil {
		return nil, fmt.Errorf("listing the CPUs: %w", err)
	}
	return cpus, nil
}

// parseCPUList parses a list in the kernel's format, such as "0-3,8,10-11".
func parseCPUList(list []byte) (cpus []int, err error) {
	ok := procfs.ParseCPUs(list, func(first, last int) {
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
	})
	if !ok || len(cpus) == 0 {
		return nil, fmt.Errorf("%q is not a list of CPUs", list)
	}
	return cpus, nil
}
