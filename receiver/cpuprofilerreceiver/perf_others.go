// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cpuprofilerreceiver

import (
	"errors"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
)

// perfSamplers lists the samplers that use perf events. Only the configuration keys of these
// samplers are used, because perf events need Linux.
func perfSamplers(cfg *Config) []sampler.Factory {
	return []sampler.Factory{
		{Key: "cpu", Enabled: cfg.CPU.Enabled, PerfEvents: true}, {Key: "off_cpu", Enabled: cfg.OffCPU.HasValue(), PerfEvents: true},
		{Key: "allocations", Enabled: cfg.Allocations.HasValue(), PerfEvents: true}, {Key: "network", Enabled: cfg.Network.HasValue(), PerfEvents: true},
	}
}

func (*profiler) addPerf(*sampler.Shared) (namer, error) { return nil, errors.ErrUnsupported }
