// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package pprofstest builds requests for tests. The requests look like requests of the
// receiver that have passed cpu_trigger.
package pprofstest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// WindowStart is the start of profiles, and Window is the length of profiles. Period is the
// CPU time that an event represents. All values are in nanoseconds.
const (
	WindowStart = 1_780_000_000_000_000_000 // 2026-05-28T20:26:40Z
	Window      = 5_000_000_000
	Period      = 10_000_000
)

// Input describes a request. The zero value has no samples.
type Input struct {
	Resource map[string]string // added to the attributes of the process
	Profile  map[string]string // hotprofile.* attributes of each profile
	Hot      int               // number of events in main.hot
	Cold     int               // number of events in main.cold, which a thread calls
	Stacks   int               // number of other stacks, each with one event
	Later    time.Duration
	NoPath   bool // omit process.executable.path and process.pid
}

// Build returns the request. The request is read-only.
func (in Input) Build(t testing.TB) pprofile.Profiles {
	t.Helper()
	start := int64(WindowStart + in.Later)
	batch := samples.NewBatch(64 << 20)
	batch.Start, batch.End = start, start+Window

	// The attributes are sorted by key, like the receiver's attributes.
	r := &samples.Resource{PID: 7, Attributes: []samples.Attribute{
		{Key: attr.ExecutableName, Value: "app"},
		{Key: attr.ExecutablePath, Value: "/bin/app"},
		{Key: attr.PID, Value: int64(7)},
	}}
	if in.NoPath {
		r.Attributes = r.Attributes[:1]
	}
	for k, v := range in.Resource {
		r.Attributes = append(r.Attributes, samples.Attribute{Key: k, Value: v})
	}
	libc := &samples.Mapping{Start: 0x7f0000000000, Limit: 0x7f0000100000, Path: "/lib/libc.so.6", BuildID: "11bc"}
	app := &samples.Mapping{Start: 0x400000, Limit: 0x800000, FileOffset: 0x1000, Path: "/bin/app", BuildID: "abcd", GoBuildID: "go/id"}
	line := func(f string, at int64) samples.Line {
		return samples.Line{Function: f, SystemName: f, File: "/src/main.go", StartLine: at, Line: at + 1}
	}
	root := &samples.Location{Type: samples.FrameGo, Mapping: app, Address: 0x401000, Lines: []samples.Line{line("main.main", 10)}}
	hot := &samples.Location{Type: samples.FrameGo, Mapping: app, Address: 0x402000, Leaf: true, Lines: []samples.Line{line("main.hot", 20), line("main.loop", 30)}}
	cold := &samples.Location{Type: samples.FrameGo, Mapping: app, Address: 0x403000, Leaf: true, Lines: []samples.Line{line("main.cold", 40)}}
	nameless := &samples.Location{Type: samples.FrameNative, Mapping: libc, Address: 0x7f0000001000}

	add := func(thread samples.Thread, n int, locations ...*samples.Location) {
		k := samples.Key{
			Resource: r, Type: samples.OnCPU, Period: Period,
			Stack: &samples.Stack{Locations: locations}, Thread: thread,
		}
		for i := range n {
			require.True(t, batch.Add(k, start+int64(i)))
		}
	}
	add(samples.Thread{}, in.Hot, hot, root)
	add(samples.Thread{Name: "worker", ID: 42}, in.Cold, cold, nameless, root)
	for i := range in.Stacks {
		f := &samples.Location{Type: samples.FrameGo, Mapping: app, Address: 0x500000 + uint64(i), Lines: []samples.Line{line(fmt.Sprint("main.f", i), int64(i))}}
		add(samples.Thread{}, 1, f, root)
	}

	for p := range otlpprofiles.NewBuilder(otlpprofiles.Options{MaxSamples: 1 << 20, MaxProfileBytes: 1 << 25, MaxRequestBytes: 1 << 25}).Build(batch) {
		for k, v := range in.Profile {
			for _, rp := range p.ResourceProfiles().All() {
				for _, profile := range rp.ScopeProfiles().At(0).Profiles().All() {
					a := p.Dictionary().AttributeTable().AppendEmpty()
					a.SetKeyStrindex(int32(p.Dictionary().StringTable().Len()))
					p.Dictionary().StringTable().Append(k)
					a.Value().SetStr(v)
					profile.AttributeIndices().Append(int32(p.Dictionary().AttributeTable().Len() - 1))
				}
			}
		}
		p.MarkReadOnly() // as for exporters whose MutatesData is false
		return p
	}
	return pprofile.NewProfiles()
}

// Reason returns the attributes that cpu_trigger adds.
func Reason(unit, trigger, at string) map[string]string {
	return map[string]string{
		attr.Unit:             unit,
		attr.TriggerID:        trigger,
		attr.TriggerTime:      at,
		attr.TriggerPolicy:    "cpu",
		attr.TriggerMonitor:   "cpu_utilization",
		attr.TriggerThreshold: "80",
	}
}

// Checkout returns the attributes of a resource whose service is called checkout.
func Checkout() map[string]string { return map[string]string{attr.ServiceName: "checkout"} }
