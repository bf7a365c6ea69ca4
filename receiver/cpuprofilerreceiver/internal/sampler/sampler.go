// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package sampler contains the code that the receiver's samplers share. It defines the
// interface through which the receiver runs a sampler, and the data from which a
// sampler is built. Each subfolder contains one sampler with its configuration, start,
// stop and statistics.
package sampler

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/internal/cgroup"
	"github.com/hotprofile/hotprofile/internal/configlog"
	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/perftargets"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

// Sampler is a part of the receiver that adds samples to buffers.
type Sampler interface {
	// Start starts sampling. A missing permission is not an error, because the permission
	// may be granted later.
	Start(ctx context.Context) error
	// Stop ends sampling. When it returns, the sampler adds no more samples to a buffer.
	// Stop is called once, even for a sampler that was not started.
	Stop(ctx context.Context) error
	// Record adds the counts since its last call to the collector's telemetry. Calls of
	// Record never overlap. Record may also be called after Stop.
	Record(ctx context.Context)
}

// Factory builds one sampler.
type Factory struct {
	// Key is the configuration key that turns the sampler on.
	Key string
	// Enabled reports whether the sampler is configured.
	Enabled bool
	// PerfEvents reports whether the sampler needs perf events, which need Linux.
	PerfEvents bool
	// Weight is the sampler's share of the memory for processes and stacks, relative to the
	// weights of the other running samplers. Samplers with more stacks have a larger weight.
	// The weight is 0 for a sampler without such memory.
	Weight int
	// New builds the sampler. If it returns an error, it has released all resources.
	New func(*Shared) (Sampler, error)
}

// Shared contains the data to build a sampler. The receiver sets Missing and Weight for
// each sampler. The other fields are the same for all samplers.
type Shared struct {
	// Component contains the telemetry settings of the receiver. Host is the collector that
	// runs the receiver.
	Component component.TelemetrySettings
	Host      component.Host
	Status    *Status
	Logger    *zap.Logger
	Counters  *Counters
	HostInfo  HostInfo

	// Buffer is the common buffer for samples, and BufferSize is its size in bytes.
	// AddBuffer registers a sampler's own buffer, so that this buffer is also emitted and
	// measured. flush is called before each interval's batch is taken.
	Buffer     *buffer.Buffer
	BufferSize int
	AddBuffer  func(name string, b *buffer.Buffer, flush func())

	// Targets selects the processes to sample. If it is empty, the whole host is sampled.
	Targets           []processes.Target
	DiscoveryInterval time.Duration
	ExportInterval    time.Duration
	// Missing logs missing targets. It is nil if another sampler logs them.
	Missing *perftargets.Missing
	// ThreadName and ThreadID select the attributes that distinguish threads.
	ThreadName, ThreadID bool
	// HotUnits is the hot_units extension. It is nil without this extension.
	HotUnits *hotunitsextension.HotUnits
	// Sampled contains the recently sampled processes. Its keys are the names of the pprof
	// profiles that contain the same data as the samples. Sampled is nil if no sampler needs
	// it.
	Sampled map[string]*Sampled

	// Weight is the weight of the sampler. Weights is the sum of the weights of all running
	// samplers.
	Weight, Weights int
	// Perf is shared by the samplers that use perf events. It is nil
	// if no sampler uses perf events.
	Perf *Perf
}

// SentSink is the buffer for samples that a program sent. It must not block.
type SentSink interface {
	// AddSent adds an event at a time since the Unix epoch. It returns false if the event is
	// lost because the sink is full.
	AddSent(k samples.Key, unixNano, value int64) bool
}

// IsHot reports whether a process is in one of the units. It compares pid and start time,
// cgroup and container. Unknown properties of the process are 0 or empty.
func IsHot(units []hotunitsextension.Unit, who procfs.Process, path, container string) bool {
	return hotUnit(units, who, path, container) >= 0
}

// hotUnit returns the index of the first unit that contains a process, or -1.
func hotUnit(units []hotunitsextension.Unit, who procfs.Process, path, container string) int {
	return slices.IndexFunc(units, func(u hotunitsextension.Unit) bool {
		return u.PID > 0 && u.PID == who.PID && (u.Start == 0 || who.Start == 0 || u.Start == who.Start) ||
			u.ContainerID != "" && u.ContainerID == container ||
			u.Cgroup != "" && path != "" && cgroup.Under(path, u.Cgroup)
	})
}

// When is the value of the key when. It selects the processes of an expensive sampler.
type When string

// These are the values of the configuration key `when`.
const (
	WhenHot    When = "hot"
	WhenAlways When = "always"
)

// Check returns an error for an unknown value.
func (w When) Check() error {
	return configlog.OneOf("when", []When{WhenHot, WhenAlways}, cmp.Or(w, WhenHot))
}

// Resolve reports whether a sampler samples only hot units, and returns the reason as text.
// hot is nil without the hot_units extension.
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
