// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"context"
	"runtime"

	"go.opentelemetry.io/otel/metric"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/allocs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/network"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/offcpu"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/oncpu"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/unwind"
)

// perfSamplers lists the samplers that use perf events, in the order in which they start.
func perfSamplers(cfg *Config) []sampler.Factory {
	return []sampler.Factory{
		oncpu.Factory(cfg.CPU, cfg.RateConfig), offcpu.Factory(cfg.OffCPU),
		allocs.Factory(cfg.Allocations), network.Factory(cfg.Network),
	}
}

// addPerf adds the shared part of the samplers that use perf events. It returns this part
// as the namer for their samples.
func (p *profiler) addPerf(s *sampler.Shared) (namer, error) {
	setTimerSlack()
	perf := sampler.NewPerf(p.cfg.perf(), s, p.meters)
	s.Perf, p.parts = perf, append(p.parts, perf)
	return perf, p.telemetry.RegisterCPUProfilerReadsWaitingCallback(func(_ context.Context, o metric.Int64Observer) error {
		o.Observe(int64(perf.WaitingReads()))
		return nil
	})
}

// perf returns the common configuration of all samplers that use perf events.
func (cfg *Config) perf() sampler.PerfConfig {
	mode := map[Unwind]unwind.Mode{
		UnwindAuto: unwind.CopiesWhereNeeded, UnwindFramePointer: unwind.FramePointers, UnwindDwarf: unwind.Copies,
	}
	return sampler.PerfConfig{
		MaxEvents: cfg.MaxPerfEvents, Kernel: cfg.KernelStacks, Unwind: mode[cfg.Unwind],
		Languages: cfg.Languages, Labels: cfg.GoroutineLabels,
		MaxMemory: int64(cfg.MaxMemory),
		// Reading files may take a third of max_overhead, summed over all CPUs.
		FileShare: float64(cfg.MaxOverhead) / 100 / 3 * float64(runtime.NumCPU()),
	}
}
