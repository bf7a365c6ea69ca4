// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Command otelhttp is a service whose requests OpenTelemetry's own instrumentation
// records: the SDK and otelhttp, with the settings that they have from the environment.
// It serves /work, which takes some CPU, and calls itself all the time.
//
// From a line "slow" on its standard input on, /work takes -slow, and from
// "fail" on it answers 500.
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
	"os"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

func main() {
	slow := flag.Duration("slow", 200*time.Millisecond, "what a slow request takes")
	pause := flag.Duration("pause", 50*time.Millisecond, "between two requests")
	flag.Parse()
	ctx := context.Background()
	// What an operator gets with OTEL_RESOURCE_ATTRIBUTES and the detectors of the SDK.
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

	var took, failing atomic.Int64
	took.Store(int64(time.Millisecond))
	mux := http.NewServeMux()
	mux.Handle("GET /work", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		work(time.Duration(took.Load()))
		if failing.Load() > 0 {
			http.Error(w, "it fails", http.StatusInternalServerError)
		}
	}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	go func() { check(http.Serve(l, otelhttp.NewHandler(mux, "server"))) }()
	go func() {
		for ; ; time.Sleep(*pause) {
			if resp, err := http.Get("http://" + l.Addr().String() + "/work"); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}
	}()
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch in.Text() {
		case "slow":
			took.Store(int64(*slow))
		case "fail":
			failing.Store(1)
		}
	}
}

var sink atomic.Uint64

// work is the function that a profile shows.
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
