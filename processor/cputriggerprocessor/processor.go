// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/xconsumer"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/processor"
)

type cpuTrigger struct {
	component.StartFunc
	component.ShutdownFunc
	next xconsumer.Profiles
}

func newProcessor(_ processor.Settings, _ *Config, next xconsumer.Profiles) (*cpuTrigger, error) {
	return &cpuTrigger{next: next}, nil
}

func (*cpuTrigger) Capabilities() consumer.Capabilities {
	return consumer.Capabilities{MutatesData: true}
}

func (p *cpuTrigger) ConsumeProfiles(ctx context.Context, pd pprofile.Profiles) error {
	return p.next.ConsumeProfiles(ctx, pd)
}
