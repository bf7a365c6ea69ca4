// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package inlineattributesextension

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configcompression"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configmiddleware"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip"

	"github.com/hotprofile/hotprofile/extension/inlineattributesextension/internal/metadata"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

func newProfiles() pprofile.Profiles {
	p := pprofile.NewProfiles()
	p.Dictionary().StringTable().Append("", "samples", "count")
	rp := p.ResourceProfiles().AppendEmpty()
	rp.Resource().Attributes().PutStr("service.name", "checkout")
	rp.Resource().Attributes().PutEmptySlice("process.command_args").AppendEmpty().SetStr("checkout")
	sp := rp.ScopeProfiles().AppendEmpty()
	sp.Scope().Attributes().PutStr("scope", "checkout")
	profile := sp.Profiles().AppendEmpty()
	profile.SampleType().SetTypeStrindex(1)
	profile.SampleType().SetUnitStrindex(2)
	return p
}

// isInline reports whether all attributes of resources and
// scopes in a request are inline.
func isInline(t *testing.T, request []byte) bool {
	t.Helper()
	for _, v := range conformancetest.CheckRequest(request, conformancetest.Options{}) {
		if v.Rule == conformancetest.InlineAttributes {
			return false
		}
	}
	return true
}

// requireCheckout checks that a request still has the
// attributes that newProfiles has set.
func requireCheckout(t *testing.T, p pprofile.Profiles) {
	t.Helper()
	rp := p.ResourceProfiles().At(0)
	require.Equal(t, map[string]any{"service.name": "checkout", "process.command_args": []any{"checkout"}}, rp.Resource().Attributes().AsRaw())
	require.Equal(t, map[string]any{"scope": "checkout"}, rp.ScopeProfiles().At(0).Scope().Attributes().AsRaw())
}

// newTestExtension creates and starts the extension in the same way as the collector.
func newTestExtension(t *testing.T, enabled bool) *inlineAttributes {
	cfg := NewFactory().CreateDefaultConfig().(*Config)
	require.True(t, cfg.Enabled, "the default")
	cfg.Enabled = enabled
	e, err := NewFactory().Create(t.Context(), extensiontest.NewNopSettings(metadata.Type), cfg)
	require.NoError(t, err)
	require.NoError(t, e.Start(t.Context(), componenttest.NewNopHost()))
	t.Cleanup(func() { require.NoError(t, e.Shutdown(context.Background())) })
	return e.(*inlineAttributes)
}

// grpcPeer starts a server that accepts all methods and returns empty responses. The
// server sends each request to the channel received.
func grpcPeer(t *testing.T) (address string, received chan []byte) {
	received = make(chan []byte, 1)
	server := grpc.NewServer(grpc.ForceServerCodecV2(conformancetest.AsIs{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		var request, response []byte
		if err := s.RecvMsg(&request); err != nil {
			return err
		}
		received <- bytes.Clone(request)
		return s.SendMsg(&response)
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return l.Addr().String(), received
}

func TestGRPC(t *testing.T) {
	for name, tc := range map[string]struct {
		enabled    bool
		compressor string
	}{
		"enabled":          {true, ""},
		"enabled, gzip":    {true, "gzip"},
		"disabled":         {false, ""},
		"disabled, gzip":   {false, "gzip"},
		"enabled, as ever": {true, encoding.Identity},
	} {
		t.Run(name, func(t *testing.T) {
			address, received := grpcPeer(t)
			options, err := newTestExtension(t, tc.enabled).GetGRPCClientOptions(t.Context())
			require.NoError(t, err)
			options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if tc.compressor != "" {
				options = append(options, grpc.WithDefaultCallOptions(grpc.UseCompressor(tc.compressor)))
			}
			conn, err := grpc.NewClient(address, options...)
			require.NoError(t, err)
			t.Cleanup(func() { conn.Close() })

			profiles := newProfiles()
			_, err = pprofileotlp.NewGRPCClient(conn).Export(t.Context(), pprofileotlp.NewExportRequestFromProfiles(profiles))
			require.NoError(t, err)
			request := <-received
			require.Equal(t, tc.enabled, isInline(t, request))
			p, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(request)
			require.NoError(t, err)
			requireCheckout(t, p)
			requireCheckout(t, profiles)

			traces := ptraceotlp.NewExportRequest()
			traces.Traces().ResourceSpans().AppendEmpty().Resource().Attributes().PutStr("service.name", "checkout")
			want, err := traces.MarshalProto()
			require.NoError(t, err)
			_, err = ptraceotlp.NewGRPCClient(conn).Export(t.Context(), traces)
			require.NoError(t, err)
			require.Equal(t, want, <-received, "requests without profiles pass unchanged")
		})
	}
}

// host is a component.Host with the given extensions.
type host struct {
	component.Host
	extensions map[component.ID]component.Component
}

func (h host) GetExtensions() map[component.ID]component.Component { return h.extensions }

// httpPeer starts a server that is configured like the collector's own receivers.
// received gets the decompressed bodies, and encodings gets their Content-Encoding.
func httpPeer(t *testing.T) (url string, received chan []byte, encodings chan string) {
	received, encodings = make(chan []byte, 1), make(chan string, 1)
	cfg := confighttp.NewDefaultServerConfig()
	server, err := cfg.ToServer(t.Context(), nil, componenttest.NewNopTelemetrySettings(), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		received <- body
	}))
	require.NoError(t, err)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		encodings <- r.Header.Get("Content-Encoding")
		server.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, received, encodings
}

func post(t *testing.T, client *http.Client, url, mediaType string, body []byte) error {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Content-Type", mediaType)
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	require.Equal(t, http.StatusOK, response.StatusCode)
	return response.Body.Close()
}

func newClient(t *testing.T, enabled bool, compression configcompression.Type) *http.Client {
	id := component.NewID(metadata.Type)
	cfg := confighttp.NewDefaultClientConfig()
	cfg.Compression = compression
	cfg.Middlewares = []configmiddleware.Config{{ID: id}}
	var e extension.Extension = newTestExtension(t, enabled)
	client, err := cfg.ToClient(t.Context(), host{extensions: map[component.ID]component.Component{id: e}}.GetExtensions(), componenttest.NewNopTelemetrySettings())
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	return client
}

func TestHTTP(t *testing.T) {
	url, received, encodings := httpPeer(t)
	const protobuf = "application/x-protobuf"
	for _, compression := range []configcompression.Type{
		"none", configcompression.TypeGzip, configcompression.TypeZlib, configcompression.TypeDeflate, configcompression.TypeZstd,
		configcompression.TypeSnappy, configcompression.TypeSnappyFramed, configcompression.TypeLz4,
	} {
		for _, enabled := range []bool{true, false} {
			t.Run(string(compression)+map[bool]string{true: " enabled", false: " disabled"}[enabled], func(t *testing.T) {
				want := string(compression)
				if want == "none" {
					want = ""
				}
				client := newClient(t, enabled, compression)
				profiles := newProfiles()
				profiles.MarkReadOnly()
				body, err := pprofileotlp.NewExportRequestFromProfiles(profiles).MarshalProto()
				require.NoError(t, err)
				require.NoError(t, post(t, client, url+profilesPath, protobuf, body))
				require.Equal(t, want, <-encodings)
				request := <-received
				require.Equal(t, enabled, isInline(t, request))
				p, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(request)
				require.NoError(t, err)
				requireCheckout(t, p)

				require.NoError(t, post(t, client, url+"/v1/traces", protobuf, body))
				<-encodings
				require.Equal(t, body, <-received, "requests without profiles pass unchanged")
			})
		}
	}
}

func TestHTTPWithJSONAndAnotherPath(t *testing.T) {
	url, received, encodings := httpPeer(t)
	client := newClient(t, true, configcompression.TypeGzip)
	profiles := newProfiles()
	profiles.MarkReadOnly()
	body, err := pprofileotlp.NewExportRequestFromProfiles(profiles).MarshalJSON()
	require.NoError(t, err)

	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/in/profiles", bytes.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json; charset=utf-8")
	request.Header.Set(pprofileotlp.DevelopmentVersionHeader, pprofileotlp.DevelopmentVersion) // exporters set this header
	response, err := client.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, "gzip", <-encodings)
	sent := <-received
	require.NotContains(t, string(sent), "Strindex\":3", "only references are above 2")
	p, err := (&pprofile.JSONUnmarshaler{}).UnmarshalProfiles(sent)
	require.NoError(t, err)
	requireCheckout(t, p)
}

func TestHTTPFaults(t *testing.T) {
	url, _, _ := httpPeer(t)
	client := newClient(t, true, "none")
	err := post(t, client, url+profilesPath, "application/x-protobuf", []byte{0xff})
	require.ErrorContains(t, err, "inline_attributes: read the request")
	require.True(t, consumererror.IsPermanent(err), "the exporter does not try again")
	rt := &roundTripper{next: http.DefaultTransport}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+profilesPath, bytes.NewReader(nil))
	require.NoError(t, err)
	request.Header.Set("Content-Encoding", "br")
	_, err = rt.RoundTrip(request) //nolint:bodyclose // there is no response
	require.ErrorContains(t, err, `compression "br" is not known`)
}
