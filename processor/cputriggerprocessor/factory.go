// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/xprocessor"

	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor/internal/metadata"
)

// NewFactory returns the factory of `cpu_trigger`. If pipelines of several signals use the
// same component id, they share one instance.
func NewFactory() processor.Factory {
	return xprocessor.NewFactory(
		metadata.Type,
		func() component.Config { return createDefaultConfig() },
		xprocessor.WithTraces(func(_ context.Context, set processor.Settings, cfg component.Config, next consumer.Traces) (processor.Traces, error) {
			return tracesTap{newTap(set, cfg.(*Config), "traces"), next}, nil
		}, metadata.TracesStability),
		xprocessor.WithMetrics(func(_ context.Context, set processor.Settings, cfg component.Config, next consumer.Metrics) (processor.Metrics, error) {
			return metricsTap{newTap(set, cfg.(*Config), "metrics"), next}, nil
		}, metadata.MetricsStability),
		xprocessor.WithProfiles(func(_ context.Context, set processor.Settings, cfg component.Config, next xconsumer.Profiles) (xprocessor.Profiles, error) {
			return createProfiles(set, cfg.(*Config), next)
		}, metadata.ProfilesStability),
	)
}
