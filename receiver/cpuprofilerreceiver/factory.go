// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package cpuprofilerreceiver is the receiver `cpu_profiler`. It samples the code that runs
// on the CPUs of a host, of cgroups or of processes. It resolves addresses to names and
// emits OTLP profiles.
//
// The package contains the configuration, the list of samplers, and the emitter that passes
// their buffers to the next consumer. internal/sampler contains one folder per sampler.
package cpuprofilerreceiver

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/xreceiver"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/metadata"
)

// NewFactory returns the factory of `cpu_profiler`.
func NewFactory() receiver.Factory {
	return xreceiver.NewFactory(
		metadata.Type,
		func() component.Config { return createDefaultConfig() },
		xreceiver.WithProfiles(createProfiles, metadata.ProfilesStability),
	)
}

func createProfiles(_ context.Context, set receiver.Settings, cfg component.Config, next xconsumer.Profiles) (xreceiver.Profiles, error) {
	return newReceiver(set, cfg.(*Config), next)
}

//go:generate go tool -modfile=../../internal/tools/go.mod mdatagen metadata.yaml
