// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package inlineattributesextension

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/inline"
)

// sink is a transport that reads each request and responds with status 200.
type sink struct{}

func (sink) RoundTrip(r *http.Request) (*http.Response, error) {
	_, err := io.Copy(io.Discard, r.Body)
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, err
}

// sampledProfiles returns a request with n samples and ten resources. The samples have 1,000
// different stacks of 20 frames each. The frames belong to 2,000 different functions.
func sampledProfiles(n int) pprofile.Profiles {
	p := pprofile.NewProfiles()
	d := p.Dictionary()
	d.StringTable().Append("", "samples", "count")
	d.FunctionTable().AppendEmpty()
	d.LocationTable().AppendEmpty()
	d.StackTable().AppendEmpty()
	for i := range 2000 {
		d.StringTable().Append(fmt.Sprintf("github.com/example/service/package%d.(*Type%d).Method%d", i%50, i%300, i))
		d.FunctionTable().AppendEmpty().SetNameStrindex(int32(i + 3))
		l := d.LocationTable().AppendEmpty()
		l.SetAddress(uint64(0x400000 + 137*i))
		l.Lines().AppendEmpty().SetFunctionIndex(int32(i + 1))
	}
	for i := range 1000 {
		stack := d.StackTable().AppendEmpty().LocationIndices()
		for depth := range 20 {
			stack.Append(int32((i*i+depth*31)%2000 + 1))
		}
	}
	const resources = 10
	for r := range resources {
		rp := p.ResourceProfiles().AppendEmpty()
		a := rp.Resource().Attributes()
		a.PutStr("service.name", fmt.Sprint("checkout", r))
		a.PutInt("process.pid", int64(r))
		for i := range 14 {
			a.PutStr(fmt.Sprint("k8s.attribute.", i), fmt.Sprint("a value of the node ", i))
		}
		profile := rp.ScopeProfiles().AppendEmpty().Profiles().AppendEmpty()
		profile.SampleType().SetTypeStrindex(1)
		profile.SampleType().SetUnitStrindex(2)
		for i := range n / resources {
			s := profile.Samples().AppendEmpty()
			s.SetStackIndex(int32((i*7+r)%1000 + 1))
			s.TimestampsUnixNano().Append(uint64(1_795_000_000_000_000_000 + i*10_309_278 + i*i%9973))
		}
	}
	p.MarkReadOnly() // marshalling changes profiles that are not read-only
	return p
}

// BenchmarkRoundTrip compares the rewriting with the exporter's own work, which is
// marshalling and compressing the request. Over gRPC, the codec rewrites the
// request before it is compressed.
func BenchmarkRoundTrip(b *testing.B) {
	const samples = 8000
	source := sampledProfiles(samples)
	b.Run("gRPC/inline", func(b *testing.B) {
		body, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(source)
		require.NoError(b, err)
		b.ReportAllocs()
		for b.Loop() {
			_, err := inline.Request(body)
			require.NoError(b, err)
		}
	})
	for _, name := range []string{"", "gzip", "zstd"} {
		compression := compressions()[name]
		exported := func() []byte {
			body, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(source)
			require.NoError(b, err)
			var out bytes.Buffer
			w, err := compression.writer(&out)
			require.NoError(b, err)
			_, err = w.Write(body)
			require.NoError(b, err)
			require.NoError(b, w.Close())
			return out.Bytes()
		}
		perSample := func(b *testing.B) {
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/samples, "ns/sample")
		}
		if name == "" {
			name = "none"
		}
		b.Run(name+"/inline", func(b *testing.B) {
			rt, body := &roundTripper{next: sink{}}, exported()
			b.ReportAllocs()
			for b.Loop() {
				request, err := http.NewRequestWithContext(b.Context(), http.MethodPost, "http://backend"+profilesPath, bytes.NewReader(body))
				require.NoError(b, err)
				if name != "none" {
					request.Header.Set("Content-Encoding", name)
				}
				response, err := rt.RoundTrip(request)
				require.NoError(b, err)
				require.NoError(b, response.Body.Close())
			}
			perSample(b)
		})
		b.Run(name+"/baseline: marshal and compress", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				exported()
			}
			perSample(b)
		})
	}
}
