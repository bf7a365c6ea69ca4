// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/test/hosttest/scratch"
)

// During an attack, profilesSent profiles are sent to the pprof exporter. Every
// bigProfiles-th profile has bigSamples samples, each with a different function. All
// other profiles have one sample and a service.name of about longName bytes.
const (
	profilesSent = 300
	bigProfiles  = 20
	bigSamples   = 10_000
	longName     = 2 << 20
)

// profilesDir returns the directory of the collector's
// files. The disk of this directory stalls.
func profilesDir(dir string) string { return filepath.Join(dir, "profiles") }

// stall stalls the disk of the collector's files.
func (s *soak) stall() (answer func() error, err error) {
	if err := os.MkdirAll(profilesDir(s.dir), 0o750); err != nil {
		return nil, err
	}
	return scratch.Stall(profilesDir(s.dir))
}

// sendNames sends profiles to a collector until ctx ends. The parameter in is the time over
// which the profiles are evenly spread. sendNames returns the number of profiles that the
// collector accepted, because the collector may refuse some.
func sendNames(ctx context.Context, port int, in time.Duration) (taken int, err error) {
	conn, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	client := pprofileotlp.NewGRPCClient(conn)
	began := time.Now()
	for i := range profilesSent {
		if sleep(ctx, time.Until(began.Add(in*time.Duration(i)/profilesSent))) != nil {
			break
		}
		name, samples := fmt.Sprint(i, strings.Repeat("x", longName)), 1
		if i%bigProfiles == 0 {
			name, samples = fmt.Sprint("big", i), bigSamples
		}
		call, cancel := context.WithTimeout(ctx, 5*time.Second)
		if _, err := client.Export(call, pprofileotlp.NewExportRequestFromProfiles(named(name, samples))); err == nil {
			taken++
		}
		cancel()
	}
	return taken, nil
}

// named returns a profile of the given service.
func named(service string, samples int) pprofile.Profiles {
	out := pprofile.NewProfiles()
	d := out.Dictionary()
	text := func(s string) int32 {
		d.StringTable().Append(s)
		return int32(d.StringTable().Len() - 1)
	}
	text("")
	d.MappingTable().AppendEmpty()
	d.LocationTable().AppendEmpty()
	d.FunctionTable().AppendEmpty()
	d.LinkTable().AppendEmpty()
	d.AttributeTable().AppendEmpty()
	d.StackTable().AppendEmpty()
	rp := out.ResourceProfiles().AppendEmpty()
	rp.Resource().Attributes().PutStr(attr.ServiceName, service)
	p := rp.ScopeProfiles().AppendEmpty().Profiles().AppendEmpty()
	cpu, nanoseconds := text("cpu"), text("nanoseconds")
	p.SampleType().SetTypeStrindex(cpu)
	p.SampleType().SetUnitStrindex(nanoseconds)
	p.PeriodType().SetTypeStrindex(cpu)
	p.PeriodType().SetUnitStrindex(nanoseconds)
	p.SetPeriod(10_000_000)
	for i := range samples {
		d.FunctionTable().AppendEmpty().SetNameStrindex(text(fmt.Sprintf("function_of_a_stranger_%s_%d", service[:min(len(service), 20)], i)))
		l := d.LocationTable().AppendEmpty()
		l.SetAddress(uint64(i))
		l.Lines().AppendEmpty().SetFunctionIndex(int32(d.FunctionTable().Len() - 1))
		d.StackTable().AppendEmpty().LocationIndices().Append(int32(d.LocationTable().Len() - 1))
		s := p.Samples().AppendEmpty()
		s.SetStackIndex(int32(d.StackTable().Len() - 1))
		s.Values().Append(10_000_000)
	}
	return out
}
