// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

// hotPath is a Go benchmark and its baseline, which run together. ours and baseline are the
// names of the two benchmarks in the results, without the prefix "Benchmark".
type hotPath struct {
	pkg, shows     string
	ours, baseline string // baseline may be empty
	against        string // describes the baseline
	per            float64
	unit           string // one operation processes per units; empty if costs are per operation
}

// hotPaths are benchmarks of code that runs for each sample, unit or decision.
var hotPaths = []hotPath{
	{pkg: "internal/perfevent/internal/record", shows: "a sample out of a ring, decoded", ours: "ReadSample/1_ring/read", baseline: "ReadSample/1_ring/copy", against: "copy of its bytes"},
	{pkg: "internal/perfevent/internal/record", shows: "a sample with 16 KiB of its stack", ours: "ReadSample/16_rings_with_stacks/read", baseline: "ReadSample/16_rings_with_stacks/copy", against: "copy of its bytes"},
	{pkg: "receiver/cpuprofilerreceiver/internal/sampler/oncpu", shows: "a decoded sample into the buffer", ours: "RecordToBuffer/record", baseline: "RecordToBuffer/baseline=add", against: "bare `Batch.Add`"},
	{pkg: "receiver/cpuprofilerreceiver/internal/processes", shows: "a stack of 32 frames, seen before", ours: "Stack/seen_before", baseline: "Stack/baseline:_map_lookup", against: "map lookup"},
	{pkg: "internal/samples", shows: "a sample into the batch", ours: "Add/stacks=1", baseline: "Add/baseline=map", against: "counting in a map"},
	{pkg: "receiver/cpuprofilerreceiver/internal/sampler/offcpu", shows: "a wait, two switches, with its stack", ours: "Switch/wait_with_its_stack", baseline: "Switch/baseline=add", against: "bare `AddValue`"},
	{pkg: "receiver/cpuprofilerreceiver/internal/sampler/allocs", shows: "a sampled allocation", ours: "Hit/every_one_is_kept", baseline: "Hit/baseline:_copying_the_stack", against: "copy of its stack"},
	{pkg: "receiver/cpuprofilerreceiver/internal/sampler/network", shows: "a call on a socket", ours: "Call/call", baseline: "Call/baseline=stack", against: "its stack alone"},
	{pkg: "receiver/cpuprofilerreceiver/internal/unwind", shows: "a stack of Go by its tables", ours: "Unwind/go/by=tables", baseline: "Unwind/go/by=frame_pointers", against: "by frame pointers"},
	{pkg: "receiver/cpuprofilerreceiver/internal/unwind", shows: "a stack of C by `.eh_frame`", ours: "Unwind/c/by=tables", baseline: "Unwind/c/by=copying_16KiB", against: "copying 16 KiB"},
	{pkg: "receiver/cpuprofilerreceiver/internal/symbolizer", shows: "a name asked for before", ours: "Resolve"},
	{pkg: "receiver/cpuprofilerreceiver/internal/symbolizer", shows: "a name of Go, asked for first", ours: "Lookup/symbolizer", baseline: "Lookup/gosym", against: "`debug/gosym`, table in memory, without inlined calls"},
	{pkg: "internal/otlpprofiles", shows: "OTLP built and marshalled", ours: "Export/build_and_marshal", baseline: "Export/baseline:_marshal_alone", against: "marshalling alone", per: 5000, unit: "sample"},
	{pkg: "receiver/cpuprofilerreceiver", shows: "decoded record to marshalled request", ours: "SampleAllIn/all", baseline: "SampleAllIn/baseline=marshal", against: "marshalling alone", per: 970, unit: "sample"},
	{pkg: "receiver/cpuprofilerreceiver", shows: "a .NET buffer over HTTP", ours: "DotnetIntake/tcp/senders=1", baseline: "DotnetIntake/baseline=read/tcp/senders=1", against: "a handler that reads it"},
	{pkg: "internal/nativeformat", shows: "the .NET buffers of a web program decoded", ours: "Decode/web/known", baseline: "Decode/web/baseline=plain", against: "`encoding/binary`"},
	{pkg: "processor/cputriggerprocessor", shows: "a batch through a shut gate", ours: "Gate/shut", baseline: "Gate/baseline:_pass-through", against: "pass-through"},
	{pkg: "processor/cputriggerprocessor", shows: "a batch through an open gate", ours: "Gate/open_for_all", baseline: "Gate/baseline:_pass-through_with_a_copy", against: "pass-through with a copy"},
	{pkg: "processor/cputriggerprocessor", shows: "a batch through a gate open for one unit of 50", ours: "Gate/open_for_one_of_50", baseline: "Gate/baseline:_pass-through_with_a_copy", against: "pass-through with a copy"},
	{pkg: "processor/cputriggerprocessor", shows: "a batch into the recorder", ours: "RecorderAppend/1_units", baseline: "RecorderAppend/10_units", against: "of ten units"},
	{pkg: "internal/trigger", shows: "a decision about 10,000 units by five policies", ours: "Evaluate/engine", baseline: "Evaluate/baseline", against: "as many comparisons of floats", per: 10_000, unit: "unit"},
	{pkg: "internal/cgroup", shows: "a cgroup's CPU time", ours: "Reading/CPUTime", baseline: "Reading/containerd", against: "containerd's `Stat`"},
	{pkg: "internal/monitor", shows: "a container's monitors of the default policies", ours: "ThousandCgroups/ContainersWithQuota", baseline: "ThousandCgroups/OnePreadEach", against: "one pread each", per: 1000, unit: "unit"},
	{pkg: "extension/inlineattributesextension", shows: "attributes of a request inline over HTTP, gzip", ours: "RoundTrip/gzip/inline", baseline: "RoundTrip/gzip/baseline:_marshal_and_compress", against: "marshalling and compressing it", per: 8000, unit: "sample"},
	{pkg: "internal/otlpprofiles/pprofconv", shows: "a profile added to a pprof file", ours: "Add/add", baseline: "Add/baseline:_copy", against: "copy of it", per: 2000, unit: "sample"},
	{pkg: "extension/consoleextension/internal/profilefiles", shows: "a profile added to the console", ours: "AddSamples/add", baseline: "AddSamples/baseline:_builder", against: "to a pprof file", per: 2000, unit: "sample"},
}

// growth lists benchmarks that show how the cost of a hot path grows.
var growth = []hotPath{
	{pkg: "receiver/cpuprofilerreceiver/internal/sampler/oncpu", shows: "a sample, stack 8 deep", ours: "Record/depth=8"},
	{pkg: "receiver/cpuprofilerreceiver/internal/sampler/oncpu", shows: "a sample, stack 32 deep", ours: "Record/depth=32"},
	{pkg: "receiver/cpuprofilerreceiver/internal/sampler/oncpu", shows: "a sample, stack 127 deep", ours: "Record/depth=127"},
	{pkg: "receiver/cpuprofilerreceiver/internal/sampler/oncpu", shows: "a sample, of 1 thread", ours: "Record/threads=1"},
	{pkg: "receiver/cpuprofilerreceiver/internal/sampler/oncpu", shows: "a sample, of 100 threads by turns", ours: "Record/threads=100"},
	{pkg: "internal/samples", shows: "a sample into the batch, one stack", ours: "Add/stacks=1"},
	{pkg: "internal/samples", shows: "a sample into the batch, 1,000 stacks by turns", ours: "Add/stacks=1000"},
	{pkg: "receiver/cpuprofilerreceiver/internal/processes", shows: "a stack never seen", ours: "Stack/never_seen"},
	{pkg: "processor/cputriggerprocessor", shows: "a tick of 1,000 units beside reading", ours: "Collect/units=1000", per: 1000, unit: "unit"},
	{pkg: "processor/cputriggerprocessor", shows: "a tick of 10,000 units beside reading", ours: "Collect/units=10000", per: 10_000, unit: "unit"},
}
