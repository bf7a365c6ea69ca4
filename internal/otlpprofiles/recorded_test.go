// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package otlpprofiles

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hotprofile/hotprofile/test/conformancetest"
)

// TestRecordedRequestsOfBothFormsAreRead decodes requests that were recorded from the
// collector versions 0.159 and 0.164, in the same way as the otlp receiver. The requests
// contain their attributes either inline or as references. Each request must equal the
// golden request of the CPU profile.
func TestRecordedRequestsOfBothFormsAreRead(t *testing.T) {
	read := func(path string) []byte {
		body, err := os.ReadFile(filepath.Join("../../testdata/otlp", path))
		require.NoError(t, err)
		return body
	}
	inJSON := func(body []byte) (pprofile.Profiles, error) {
		r := pprofileotlp.NewExportRequest()
		err := r.UnmarshalJSON(body)
		return r.Profiles(), err
	}
	overHTTP := func(body []byte) (pprofile.Profiles, error) {
		r := pprofileotlp.NewExportRequest()
		err := r.UnmarshalProto(body)
		return r.Profiles(), err
	}
	overGRPC := grpcReceiver(t)

	golden, err := inJSON(read("golden/on_cpu.json"))
	require.NoError(t, err)
	want := conformancetest.Contents(golden)
	require.Len(t, want, 3)
	for i, profile := range want {
		require.Equal(t, map[string]any{"service.name": "checkout", "process.executable.name": "app", "process.pid": int64(i % 2)}, profile["resource"])
		require.Len(t, profile["samples"], 1)
	}
	readBack := func(name string, body []byte, decode func([]byte) (pprofile.Profiles, error)) {
		t.Helper()
		p, err := decode(body)
		require.NoError(t, err, name)
		require.Equal(t, want, conformancetest.Contents(p), name)
	}
	for version, opts := range map[string]conformancetest.Options{"0.159": {}, "0.164": {References: true}} {
		dir := "recorded/" + version
		require.Empty(t, conformancetest.CheckRequest(read(dir+"/grpc.pb"), opts), "the form of %s", version)
		require.Empty(t, conformancetest.CheckRequest(read(dir+"/http.pb"), opts), "the form of %s", version)
		readBack(dir+"/grpc.pb", read(dir+"/grpc.pb"), overGRPC)
		readBack(dir+"/http.pb", read(dir+"/http.pb"), overHTTP)
		readBack(dir+"/http.json", read(dir+"/http.json"), inJSON)
	}
	require.NotContains(t, string(read("recorded/0.159/http.json")), "stringValueStrindex")
	require.Contains(t, string(read("recorded/0.164/http.json")), "stringValueStrindex")

	mixed := conformancetest.Mixed(read("recorded/0.164/http.pb"), read("recorded/0.159/http.pb"))
	for _, opts := range []conformancetest.Options{{}, {References: true}} {
		require.NotEmpty(t, conformancetest.CheckRequest(mixed, opts), "it has both forms")
	}
	readBack("mixed, over HTTP", mixed, overHTTP)
	readBack("mixed, over gRPC", mixed, overGRPC)
}

// grpcReceiver starts a gRPC server like the otlp receiver's server. It returns a
// function that sends an encoded request without changes and returns the request that the
// server decodes.
func grpcReceiver(t *testing.T) func([]byte) (pprofile.Profiles, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server, s := grpc.NewServer(), &profilesService{}
	pprofileotlp.RegisterGRPCServer(server, s)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return func(body []byte) (pprofile.Profiles, error) {
		var answer []byte
		err := conn.Invoke(t.Context(), "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export", &body, &answer, grpc.ForceCodecV2(conformancetest.AsIs{}))
		return s.received, err
	}
}

type profilesService struct {
	pprofileotlp.UnimplementedGRPCServer
	received pprofile.Profiles
}

func (s *profilesService) Export(_ context.Context, r pprofileotlp.ExportRequest) (pprofileotlp.ExportResponse, error) {
	s.received = r.Profiles()
	return pprofileotlp.NewExportResponse(), nil
}
