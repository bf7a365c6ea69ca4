// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cpuprofilerreceiver

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles"
	"github.com/hotprofile/hotprofile/internal/perfevent"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/buffer"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/sampler"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/symbolizer"
)

// stacksOfThisProgram returns n different stacks with depth addresses each.
func stacksOfThisProgram(n, depth int) []perfevent.Sample {
	var functions []uint64
	for _, f := range []any{
		strings.Repeat, strings.Split, strconv.Itoa, strconv.Quote, sort.Strings, filepath.Join, filepath.Walk,
		os.Getpid, os.ReadFile, time.Now, time.Parse, reflect.DeepEqual, context.WithCancel,
		newReceiver, buffer.New, createDefaultConfig, NewFactory, sampler.NewHostInfo, stacksOfThisProgram,
	} {
		functions = append(functions, uint64(reflect.ValueOf(f).Pointer()))
	}
	out := make([]perfevent.Sample, n)
	for i := range out {
		for d := range depth {
			out[i].User = append(out[i].User, functions[(i*7+d*3)%len(functions)]+uint64(4+(i+d)%12))
		}
		out[i].Period = int64(time.Second / 97)
	}
	return out
}

// BenchmarkSampleAllIn measures the cost of one sample, from the decoded record to the
// marshalled request. All names are resolved before the measurement. A batch has 970
// samples of 200 stacks with 25 frames each, like two busy CPUs at the default interval.
// For comparison, the benchmark also measures marshalling alone.
func BenchmarkSampleAllIn(b *testing.B) {
	const perBatch, stacks, depth = 970, 200, 25
	symbols := symbolizer.New(symbolizer.Config{})
	defer symbols.Close()
	table := processes.NewTable(processes.Config{Track: symbols.Track})
	name := func(pid int, s *samples.Stack) {
		for _, l := range s.Locations {
			if !l.Resolved {
				symbols.Resolve(pid, l)
			}
		}
		processes.MarkTruncated(s)
	}
	builder := otlpprofiles.NewBuilder(otlpprofiles.Options{})
	recorded := stacksOfThisProgram(stacks, depth)
	c := &fakeClock{}
	buffer := buffer.New(4<<20, c)
	fill := func() {
		p := table.Lookup(os.Getpid(), 0)
		for i := range perBatch {
			s := &recorded[i%stacks]
			k := samples.Key{
				Resource: p.Resource, Type: samples.OnCPU, Period: s.Period, Stack: p.Stack(s, false),
				Thread: samples.Thread{Name: table.ThreadName(p.PID, p.PID)},
			}
			c.now++
			if !buffer.AddValue(k, c.now, 0) {
				b.Fatal("full")
			}
		}
	}
	var marshaler pprofile.ProtoMarshaler
	export := func(to func(pprofile.Profiles)) {
		batch, ok := buffer.Take()
		if !ok {
			b.Fatal("empty")
		}
		for k := range batch.Keys() {
			name(k.Resource.PID, k.Stack)
		}
		for request := range builder.Build(batch) {
			to(request)
		}
		buffer.Done()
	}
	marshal := func(p pprofile.Profiles) {
		if _, err := marshaler.MarshalProfiles(p); err != nil {
			b.Fatal(err)
		}
	}
	perSample := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/perBatch, "ns/sample")
	}
	fill()
	export(func(pprofile.Profiles) {}) // resolves all names
	b.Run("all", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			fill()
			export(marshal)
		}
		perSample(b)
	})
	b.Run("baseline=marshal", func(b *testing.B) {
		fill()
		var requests []pprofile.Profiles
		export(func(p pprofile.Profiles) {
			kept := pprofile.NewProfiles()
			p.CopyTo(kept)
			kept.MarkReadOnly()
			requests = append(requests, kept)
		})
		b.ReportAllocs()
		for b.Loop() {
			for _, p := range requests {
				marshal(p)
			}
		}
		perSample(b)
	})
}
