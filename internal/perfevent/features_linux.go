// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"errors"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
	"github.com/hotprofile/hotprofile/internal/procfs"
)

// features are the features of the running kernel.
type features struct {
	// inheritThread restricts an event to the threads of its process (Linux 5.13).
	inheritThread bool
	// cgroup adds the cgroup to samples (Linux 5.7). It is used only where the v2 tree
	// owns perf_event: ids of a v1 hierarchy mean nothing elsewhere.
	cgroup bool
}

func findFeatures() features {
	return features{
		inheritThread: inheritThread.supported(),
		cgroup:        sampleCgroup.supported() && unifiedOwnsPerfEvent(),
	}
}

var (
	inheritThread = featureTest{bits: unix.PerfBitInherit | sys.AttrInheritThread}
	sampleCgroup  = featureTest{features: features{cgroup: true}}
)

// featureTest opens an event of our own that counts nothing. It tries again
// until the answer is certain: opening may also fail for want of descriptors.
type featureTest struct {
	features features
	bits     uint64

	mu             sync.Mutex
	certain, works bool
}

func (t *featureTest) supported() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.certain {
		return t.works
	}
	attr := attributes{features: t.features}.anchor(1, false)
	attr.Bits |= t.bits
	fd, err := sys.Open(attr, 0, -1, 0)
	if err == nil {
		unix.Close(fd)
	}
	t.works = err == nil
	t.certain = t.works || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.E2BIG)
	return t.works
}

// maxControllers bounds what is read of /proc/cgroups, in bytes. It has about 500.
const maxControllers = 64 << 10

// unifiedOwnsPerfEvent reports whether perf_event is in the v2 tree, as it is
// unless a v1 hierarchy has it. Kernels without v1 have no /proc/cgroups.
func unifiedOwnsPerfEvent() bool {
	text, err := procfs.ReadFile("/proc/cgroups", maxControllers)
	if errors.Is(err, os.ErrNotExist) {
		return true
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "perf_event" {
			return f[1] == "0"
		}
	}
	return false
}
