// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package inlineattributesextension

import (
	"context"
	"fmt"
	"net/http"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/extensionmiddleware"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/inline"
)

// exportMethod is the full name of the gRPC method that exports profiles.
const exportMethod = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"

// inlineAttributes is the extension. It has no state.
type inlineAttributes struct {
	component.StartFunc
	component.ShutdownFunc
	cfg *Config
}

var (
	_ extensionmiddleware.GRPCClient = (*inlineAttributes)(nil)
	_ extensionmiddleware.HTTPClient = (*inlineAttributes)(nil)
)

func newExtension(cfg *Config) *inlineAttributes { return &inlineAttributes{cfg: cfg} }

// GetGRPCClientOptions implements extensionmiddleware.GRPCClient. gRPC compresses the
// output of the codec.
func (e *inlineAttributes) GetGRPCClientOptions(context.Context) ([]grpc.DialOption, error) {
	if !e.cfg.Enabled {
		return nil, nil
	}
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(intercept)}, nil
}

func intercept(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if method == exportMethod {
		options = append(options, grpc.ForceCodecV2(codec{encoding.GetCodecV2("proto")}))
	}
	return invoke(ctx, method, request, reply, conn, options...)
}

// codec wraps the gRPC codec of the exporter. Marshal rewrites the encoded request so that
// attributes are written out instead of referring to the dictionary.
type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	encoded, err := c.CodecV2.Marshal(v)
	if err != nil {
		return nil, err
	}
	defer encoded.Free()
	request, err := inline.Request(encoded.Materialize())
	if err != nil {
		return nil, fmt.Errorf("inline_attributes: %w", err)
	}
	return mem.BufferSlice{mem.SliceBuffer(request)}, nil
}

// GetHTTPRoundTripper implements extensionmiddleware.HTTPClient.
func (e *inlineAttributes) GetHTTPRoundTripper(context.Context) (extensionmiddleware.WrapHTTPRoundTripperFunc, error) {
	return func(_ context.Context, next http.RoundTripper) (http.RoundTripper, error) {
		if !e.cfg.Enabled {
			return next, nil
		}
		return &roundTripper{next: next}, nil
	}, nil
}
