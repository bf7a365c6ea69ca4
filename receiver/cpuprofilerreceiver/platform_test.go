// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/metadata"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/allocs"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/dotnet"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/network"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/offcpu"
)

// TestOtherSystemsHaveTheSamplersThatNeedNoPerfEvents runs the receiver as if the
// operating system were not Linux.
func TestOtherSystemsHaveTheSamplersThatNeedNoPerfEvents(t *testing.T) {
	cfg := createDefaultConfig()
	intake := dotnet.DefaultConfig()
	intake.ServerConfig.NetAddr.Endpoint = "localhost:0"
	cfg.Dotnet = configoptional.Some(intake)
	cfg.OffCPU = configoptional.Some(offcpu.DefaultConfig())
	cfg.Allocations = configoptional.Some(allocs.DefaultConfig())
	cfg.Network = configoptional.Some(network.DefaultConfig())
	core, logs := observer.New(zap.InfoLevel)
	set := receivertest.NewNopSettings(metadata.Type)
	set.Logger = zap.New(core)
	p, err := newReceiver(set, cfg, consumertest.NewNop())
	require.NoError(t, err)
	p.goos = "darwin"
	require.NoError(t, p.Start(t.Context(), componenttest.NewNopHost()))
	defer func() { require.NoError(t, p.Shutdown(context.Background())) }()

	missing := logs.FilterMessage("samplers that need Linux perf events are not available").All()
	require.Len(t, missing, 1)
	require.Equal(t, []any{"cpu", "off_cpu", "allocations", "network"}, missing[0].ContextMap()["samplers"])
	server := p.parts[len(p.parts)-1].(*dotnet.Server)
	resp, err := http.Get("http://" + server.Addr().String() + "/v1/dotnet/thread-samples")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)
}

func TestOtherSystemsStartWithNothingToSample(t *testing.T) {
	p, err := newReceiver(receivertest.NewNopSettings(metadata.Type), createDefaultConfig(), consumertest.NewNop())
	require.NoError(t, err)
	p.goos = "windows"
	require.NoError(t, p.Start(t.Context(), componenttest.NewNopHost()))
	require.Empty(t, p.parts)
	require.NoError(t, p.Shutdown(context.Background()))
}
