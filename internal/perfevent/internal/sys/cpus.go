// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

const onlineFile = "/sys/devices/system/cpu/online"

// ChooseCPUs returns cpus, or all that are online where cpus is empty.
func ChooseCPUs(cpus []int) ([]int, error) {
	if len(cpus) > 0 {
		return cpus, nil
	}
	return OnlineCPUs()
}

// OnlineCPUs lists the CPUs that are online, in ascending order.
func OnlineCPUs() ([]int, error) {
	text, err := os.ReadFile(onlineFile)
	if err != nil {
		return nil, fmt.Errorf("listing the CPUs: %w", err)
	}
	cpus, err := parseCPUList(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("listing the CPUs in %s: %w", onlineFile, err)
	}
	return cpus, nil
}

// parseCPUList parses the kernel's list format, as in "0-3,8,10-11".
func parseCPUList(list string) ([]int, error) {
	var cpus []int
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%q is not a list of CPUs", list)
		}
		last, err := strconv.ParseUint(to, 10, 16)
		if err != nil || last < first || (len(cpus) > 0 && int(first) <= cpus[len(cpus)-1]) {
			return nil, fmt.Errorf("%q is not a list of CPUs", list)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, int(cpu))
		}
	}
	return cpus, nil
}
