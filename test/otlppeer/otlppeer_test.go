// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package otlppeer_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/hotprofile/hotprofile/test/otlppeer"
)

func oneProfile(timestamps ...uint64) pprofile.Profiles {
	pd := pprofile.NewProfiles()
	p := pd.ResourceProfiles().AppendEmpty().ScopeProfiles().AppendEmpty().Profiles().AppendEmpty()
	p.Samples().AppendEmpty().TimestampsUnixNano().FromRaw(timestamps)
	return pd
}

func TestAPeerAnswersWhatItIsToldAndComesBackAtItsPort(t *testing.T) {
	var answer error
	events := 0
	peer := otlppeer.New(func(_ context.Context, pd pprofile.Profiles) error {
		events += otlppeer.Events(pd.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0))
		return answer
	})
	require.NoError(t, peer.Start())
	t.Cleanup(peer.Stop)
	require.Error(t, peer.Start())

	send := func() codes.Code {
		conn, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", peer.Port), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer conn.Close()
		_, err = pprofileotlp.NewGRPCClient(conn).Export(t.Context(), pprofileotlp.NewExportRequestFromProfiles(oneProfile(1, 2, 3)))
		return status.Code(err)
	}
	require.Equal(t, codes.OK, send())
	answer = status.Error(codes.InvalidArgument, "told so")
	require.Equal(t, codes.InvalidArgument, send())
	require.Equal(t, 6, events)

	port := peer.Port
	peer.GracefulStop()
	require.Equal(t, codes.Unavailable, send())
	peer.Stop() // a second Stop has no effect
	require.NoError(t, peer.Start())
	require.Equal(t, port, peer.Port)
	answer = nil
	require.Equal(t, codes.OK, send())
}

func TestASampleWithoutTimestampsIsOneEvent(t *testing.T) {
	p := oneProfile().ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0)
	require.Equal(t, 1, otlppeer.Events(p))
	p.Samples().AppendEmpty().TimestampsUnixNano().FromRaw([]uint64{4, 5})
	require.Equal(t, 3, otlppeer.Events(p))
}
