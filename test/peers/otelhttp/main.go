// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command otelhttp is a service whose requests are recorded by OpenTelemetry's own
// instrumentation. It uses the SDK, otelhttp, otelgrpc and the instrumentation of Go's
// runtime. Their settings come from the environment. The service serves /work over HTTP
// and the health check over gRPC. Each request uses some CPU time. The service also sends
// requests of both kinds to itself all the time. If the environment variable
// PPROF_ADDRESS is set, net/http/pprof listens at this address.
//
// Lines on standard input change the service. The service echoes each line once the
// change has taken effect. After "slow", requests take the time given by -slow. After
// "fail", requests fail. After "often", there is no pause between requests. After "park",
// 300 goroutines wait. After "cart", the service also sends requests to /cart. The
// goroutines of these requests have labels with their span. Every 20th request to /cart
// takes another 100 ms, in the function planted.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	_ "net/http/pprof"
	"os"
	"runtime/pprof"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/contrib/instrumentation/runtime"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	apitrace "go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// service answers requests over HTTP and over gRPC.
type service struct {
	grpc_health_v1.UnimplementedHealthServer
	took    atomic.Int64 // in nanoseconds
	failing atomic.Bool
	pause   atomic.Int64 // in nanoseconds
}

func (s *service) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	work(time.Duration(s.took.Load()))
	if s.failing.Load() {
		http.Error(w, "it fails", http.StatusInternalServerError)
	}
}

func (s *service) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	work(time.Duration(s.took.Load()))
	if s.failing.Load() {
		return nil, status.Error(codes.Internal, "it fails")
	}
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

var carts atomic.Int64

func cart(_ http.ResponseWriter, r *http.Request) {
	// otelhttp does not know the route, because its handler is outside the mux.
	apitrace.SpanFromContext(r.Context()).SetAttributes(attribute.String("http.route", "/cart/{id}"))
	of := apitrace.SpanContextFromContext(r.Context())
	pprof.Do(r.Context(), pprof.Labels("trace_id", of.TraceID().String(), "span_id", of.SpanID().String()), func(context.Context) {
		work(5 * time.Millisecond)
		if carts.Add(1)%20 == 0 {
			planted()
		}
	})
}

// planted makes some requests slow.
//
//go:noinline
func planted() {
	for began := time.Now(); time.Since(began) < 100*time.Millisecond; {
		sink.Add(1)
	}
}

func main() {
	slow := flag.Duration("slow", 100*time.Millisecond, "what a slow request takes")
	pause := flag.Duration("pause", 100*time.Millisecond, "between two requests")
	flag.Parse()
	ctx := context.Background()
	// Operators get the same resource from
	// OTEL_RESOURCE_ATTRIBUTES and the SDK's detectors.
	r, err := resource.New(ctx, resource.WithFromEnv(), resource.WithTelemetrySDK(), resource.WithHost(), resource.WithProcessPID(), resource.WithProcessExecutableName())
	check(err)
	if os.Getenv("OTEL_TRACES_EXPORTER") != "none" {
		exporter, err := otlptracegrpc.New(ctx)
		check(err)
		otel.SetTracerProvider(trace.NewTracerProvider(trace.WithResource(r), trace.WithBatcher(exporter)))
	}
	if os.Getenv("OTEL_METRICS_EXPORTER") != "none" {
		exporter, err := otlpmetricgrpc.New(ctx)
		check(err)
		otel.SetMeterProvider(metric.NewMeterProvider(metric.WithResource(r), metric.WithReader(metric.NewPeriodicReader(exporter))))
	}

	check(runtime.Start(runtime.WithMinimumReadMemStatsInterval(time.Second))) // with the default of 15 s, most exports would repeat old values

	s := &service{}
	s.took.Store(int64(time.Millisecond))
	s.pause.Store(int64(*pause))
	mux := http.NewServeMux()
	mux.Handle("GET /work", s)
	mux.HandleFunc("GET /cart/{id}", cart)
	overHTTP, overGRPC := listen(), listen()
	go func() { check(http.Serve(overHTTP, otelhttp.NewHandler(mux, "server"))) }()
	if at := os.Getenv("PPROF_ADDRESS"); at != "" {
		go func() { check(http.ListenAndServe(at, nil)) }()
	}
	server := grpc.NewServer(grpc.StatsHandler(otelgrpc.NewServerHandler()))
	grpc_health_v1.RegisterHealthServer(server, s)
	go func() { check(server.Serve(overGRPC)) }()
	client, err := grpc.NewClient(overGRPC.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	go func() {
		for ; ; time.Sleep(time.Duration(s.pause.Load())) {
			if resp, err := http.Get("http://" + overHTTP.Addr().String() + "/work"); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			_, _ = grpc_health_v1.NewHealthClient(client).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		}
	}()
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch in.Text() {
		case "slow":
			s.took.Store(int64(*slow))
		case "fail":
			s.failing.Store(true)
		case "often":
			s.pause.Store(0)
		case "cart":
			go func() {
				for ; ; time.Sleep(10 * time.Millisecond) {
					if resp, err := http.Get("http://" + overHTTP.Addr().String() + "/cart/1"); err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				}
			}()
		case "park":
			for range 300 {
				go func() { select {} }()
			}
		}
		fmt.Println(in.Text())
	}
}

func listen() net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	return l
}

var sink atomic.Uint64

// work uses CPU time and is visible in profiles.
//
//go:noinline
func work(d time.Duration) {
	for began, n := time.Now(), uint64(1); time.Since(began) < d; {
		for range 1000 {
			n = n*6364136223846793005 + 1
		}
		sink.Store(n)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
