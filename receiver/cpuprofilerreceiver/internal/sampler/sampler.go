// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package sampler has what the receiver's samplers share: the interface by which
// the receiver runs them, and what they are built from. Each folder below is one
// sampler with its configuration, start, stop and statistics.
package sampler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/attach"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// Sampler is a part of the receiver that adds samples to buffers.
type Sampler interface {
	// Start begins to sample. A missing permission is not an error: it may be
	// granted later.
	Start(ctx context.Context) error
	// Stop ends sampling and waits until nothing is added to a buffer any more. It
	// is called once, also for a sampler that was not started.
	Stop(ctx context.Context) error
	// Record adds what has been counted since the last Record to the collector's
	// telemetry. One goroutine at a time calls it, also after Stop.
	Record(ctx context.Context)
}

// Factory builds one sampler.
type Factory struct {
	// Key is the key of the configuration that turns the sampler on.
	Key string
	// Enabled reports whether it is configured.
	Enabled bool
	// PerfEvents reports whether it needs perf events, and so Linux.
	PerfEvents bool
	// Weight is its part of the memory for processes and stacks, in relation to those of
	// the others that run; 0 if it has none. What has more stacks has more.
	Weight int
	// New builds the sampler. On an error it leaves nothing behind.
	New func(*Shared) (Sampler, error)
}

// Shared holds what a sampler is built from. The receiver sets Missing and Weight for
// each; the rest is the same for all.
type Shared struct {
	// Component are the settings of the receiver, Host is the collector that it
	// runs in.
	Component component.TelemetrySettings
	Host      component.Host
	Status    *Status
	Logger    *zap.Logger
	Counters  *Counters
	HostInfo  HostInfo

	// Buffer takes samples, and BufferSize is its size. AddBuffer registers a buffer of the sampler's own to be
	// emitted and measured beside it; flush is called before each interval's batch is
	// taken.
	Buffer     *buffer.Buffer
	BufferSize int
	AddBuffer  func(name string, b *buffer.Buffer, flush func())

	// Targets selects what is sampled; none means the whole host.
	Targets           []processes.Target
	DiscoveryInterval time.Duration
	ExportInterval    time.Duration
	// Missing logs missing targets; nil if another sampler does.
	Missing *attach.Missing
	// ThreadName and ThreadID report which attributes tell threads apart.
	ThreadName, ThreadID bool
	// HotUnits is the hot_units extension; nil without one.
	HotUnits *hotunitsextension.HotUnits
	// Sampled remembers the sampled processes, by the name of the pprof profile that
	// measures the same as their sampler. It is nil if no sampler needs it.
	Sampled map[string]*Sampled

	// Weight is the sampler's, Weights the sum of those of the samplers that run.
	Weight, Weights int
	// Perf is shared by the samplers on perf events; nil for all others.
	Perf *Perf
}

// IsHot reports whether a process is in one of the units: the one with a pid and start
// time, or in a cgroup or container. What is not known of it is 0 or empty.
func IsHot(units []hotunitsextension.Unit, who procfs.Process, path, container string) bool {
	return hotUnit(units, who, path, container) >= 0
}

// hotUnit returns the index of the first unit that a process is in; -1 for none.
func hotUnit(units []hotunitsextension.Unit, who procfs.Process, path, container string) int {
	return slices.IndexFunc(units, func(u hotunitsextension.Unit) bool {
		return u.PID > 0 && u.PID == who.PID && (u.Start == 0 || who.Start == 0 || u.Start == who.Start) ||
			u.ContainerID != "" && u.ContainerID == container ||
			u.Cgroup != "" && path != "" && cgroup.Under(path, u.Cgroup)
	})
}

// When selects what a sampler that costs more than others samples: the value of
// the key when.
type When string

// The values of when.
const (
	WhenHot    When = "hot"
	WhenAlways When = "always"
)

// Check returns an error for an unknown value.
func (w When) Check() error {
	if w != "" && w != WhenHot && w != WhenAlways {
		return fmt.Errorf("when: %q is not one of %s, %s", w, WhenHot, WhenAlways)
	}
	return nil
}

// Resolve reports whether a sampler samples hot units alone, and why; hot is nil
// without a hot_units extension.
func (w When) Resolve(hot *hotunitsextension.HotUnits) (isHot bool, why string, err error) {
	switch {
	case w == WhenHot && hot == nil:
		return false, "", errors.New("when: hot needs a hot_units extension: name one in extensions and in service.extensions, or write when: always")
	case w == WhenAlways:
		return false, "always", nil
	case w == "" && hot == nil:
		return false, "always, as there is no hot_units extension", nil
	case w == "":
		return true, "hot, as there is a hot_units extension", nil
	default:
		return true, "hot", nil
	}
}
