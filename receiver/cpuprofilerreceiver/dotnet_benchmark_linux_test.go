// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/collector/receiver/xreceiver"
	"go.uber.org/zap"

	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/nativeformat"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/metadata"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler/dotnet"
	"github.com/hotprofile/hotprofile/test/dotnettest"
)

// BenchmarkDotnetIntake measures the cost of sending a buffer over loopback, adding it to
// the sample buffer, and emitting it to a consumer that drops it. The senders and the
// server run on the same CPUs. For comparison, the benchmark also measures a handler that
// only reads the body. The cost of the intake is the difference between both results.
func BenchmarkDotnetIntake(b *testing.B) {
	all := dotnettest.Read(b, "web/*")
	for _, transport := range []string{"tcp", "unix"} {
		for _, senders := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/senders=%d", transport, senders), func(b *testing.B) {
				cfg := createDefaultConfig()
				intakeOf(b, transport, nil)(cfg)
				cfg.BufferSize = 16 * bytesize.MiB
				p, err := NewFactory().(xreceiver.Factory).CreateProfiles(context.Background(), receivertest.NewNopSettings(metadata.Type), cfg,
					consumerOf(func(context.Context, pprofile.Profiles) error { return nil }))
				require.NoError(b, err)
				require.NoError(b, p.Start(context.Background(), componenttest.NewNopHost()))
				defer func(p component.Component) { require.NoError(b, p.Shutdown(context.Background())) }(p)
				sendAll(b, partOf[*dotnet.Server](p).Addr(), senders, all)
			})
			b.Run(fmt.Sprintf("baseline=read/%s/senders=%d", transport, senders), func(b *testing.B) {
				at := "127.0.0.1:0"
				if transport == "unix" {
					at = "@hotprofile-benchmark"
				}
				l, err := net.Listen(transport, at)
				require.NoError(b, err)
				server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					w.WriteHeader(http.StatusAccepted)
				})}
				done := make(chan struct{})
				go func() { defer close(done); _ = server.Serve(l) }()
				defer func() { _ = server.Close(); <-done }()
				sendAll(b, l.Addr(), senders, all)
			})
		}
	}
}

// sendAll sends b.N buffers.
func sendAll(b *testing.B, to net.Addr, senders int, all []dotnettest.Capture) {
	var next, refused atomic.Int64
	var wg sync.WaitGroup
	clients := make([]*http.Client, senders)
	for i := range clients {
		clients[i] = clientTo(b, to, nil)
	}
	one := func(c *http.Client, n int64, service string) {
		capture := &all[n%int64(len(all))]
		req, err := http.NewRequest(http.MethodPost, "http://localhost"+capture.Path(), bytes.NewReader(capture.Bytes))
		if err != nil {
			b.Error(err)
			return
		}
		req.Header.Set("Content-Type", "application/octet-stream")
		req.Header.Set("Otel-Resource-Attributes", service)
		resp, err := c.Do(req)
		if err != nil {
			b.Error(err)
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusAccepted:
		case http.StatusServiceUnavailable:
			refused.Add(1)
		default:
			b.Errorf("answered %d", resp.StatusCode)
		}
	}
	for i, c := range clients {
		one(c, int64(i), fmt.Sprint("service.name=s", i)) // opens the connection and sends all names once
	}
	size := 0
	for i := range all {
		size += len(all[i].Bytes)
	}
	b.SetBytes(int64(size / len(all)))
	b.ReportAllocs()
	b.ResetTimer()
	for i, c := range clients {
		service := fmt.Sprint("service.name=s", i)
		wg.Go(func() {
			for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
				one(c, n, service)
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "buffers/s")
	b.ReportMetric(float64(refused.Load()), "refused")
	b.ReportMetric(float64(m.HeapAlloc)/(1<<20), "heap-MiB")
}

// BenchmarkDotnetBuffer measures the cost of converting a buffer into samples in the
// sample buffer, without a connection. For comparison, it also measures decoding alone
// and copying the bytes.
func BenchmarkDotnetBuffer(b *testing.B) {
	for _, glob := range []string{"web/*", "crowd/*"} {
		all := dotnettest.Read(b, glob)
		size := 0
		for i := range all {
			size += len(all[i].Bytes)
		}
		run := func(name string, each func(*dotnettest.Capture)) {
			b.Run(fmt.Sprintf("%s/%s", name, glob[:len(glob)-2]), func(b *testing.B) {
				for i := range all {
					each(&all[i])
				}
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					for i := range all {
						each(&all[i])
					}
				}
			})
		}
		buffer := buffer.New(1<<20, buffer.SystemClock{})
		intake := dotnet.New(&sampler.Shared{
			Buffer: buffer, ThreadName: true, ExportInterval: createDefaultConfig().ExportInterval, Logger: zap.NewNop(),
		}, nil)
		run("intake", func(c *dotnettest.Capture) {
			req, _ := http.NewRequest(http.MethodPost, c.Path(), bytes.NewReader(c.Bytes))
			req.Header.Set("Content-Type", "application/octet-stream")
			intake.ServeHTTP(discard{}, req)
			if batch, ok := buffer.Take(); ok && batch.Count() > 0 {
				buffer.Done()
			}
		})
		decoder := nativeformat.NewDecoder(0)
		run("baseline=decode", func(c *dotnettest.Capture) { _, _ = decoder.Decode(c.Format, c.Bytes, func(*nativeformat.Sample) {}) })
		into := make([]byte, 0, nativeformat.MaxBuffer)
		run("baseline=copy", func(c *dotnettest.Capture) { into = append(into[:0], c.Bytes...) })
	}
}

// discard is an http.ResponseWriter that drops the answer.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}
