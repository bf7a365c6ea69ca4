// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package consoleexporter

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
	"go.opentelemetry.io/collector/exporter/exporterhelper/xexporterhelper"
	"go.opentelemetry.io/collector/exporter/xexporter"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/exporter/consoleexporter/internal/metadata"
	"github.com/hotprofile/hotprofile/extension/consoleextension"
)

// NewFactory returns the factory of the exporter `console`.
func NewFactory() exporter.Factory {
	return xexporter.NewFactory(
		metadata.Type,
		createDefaultConfig,
		xexporter.WithLogs(func(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Logs, error) {
			w := &writer{cfg: cfg.(*Config)}
			return exporterhelper.NewLogs(ctx, set, cfg, func(ctx context.Context, ld plog.Logs) error { return w.to.ConsumeLogs(ctx, ld) }, w.options()...)
		}, metadata.LogsStability),
		xexporter.WithMetrics(func(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Metrics, error) {
			w := &writer{cfg: cfg.(*Config)}
			return exporterhelper.NewMetrics(ctx, set, cfg, func(ctx context.Context, md pmetric.Metrics) error { return w.to.ConsumeMetrics(ctx, md) }, w.options()...)
		}, metadata.MetricsStability),
		xexporter.WithProfiles(func(ctx context.Context, set exporter.Settings, cfg component.Config) (xexporter.Profiles, error) {
			w := &writer{cfg: cfg.(*Config)}
			return xexporterhelper.NewProfiles(ctx, set, cfg, func(ctx context.Context, pd pprofile.Profiles) error { return w.to.ConsumeProfiles(ctx, pd) }, w.options()...)
		}, metadata.ProfilesStability),
	)
}

// writer writes the data of one signal to the store.
type writer struct {
	cfg *Config
	to  *consoleextension.Console // nil until start is called
}

func (w *writer) options() []exporterhelper.Option {
	return []exporterhelper.Option{
		exporterhelper.WithStart(w.start),
		exporterhelper.WithCapabilities(consumer.Capabilities{MutatesData: false}),
		exporterhelper.WithTimeout(exporterhelper.TimeoutConfig{Timeout: w.cfg.Timeout}),
		exporterhelper.WithQueue(w.cfg.Queue),
	}
}

func (w *writer) start(_ context.Context, host component.Host) (err error) {
	w.to, err = consoleextension.Find(host, w.cfg.Extension)
	return err
}
