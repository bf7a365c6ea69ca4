// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package otlpprofiles

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/inline"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/test/conformancetest"
)

var update = flag.Bool("update", false, "write the golden files")

// goldenBatch returns a batch with three events per type, from two processes. Two of the
// three events have the same stack.
func goldenBatch(t *testing.T, types ...*samples.Type) *samples.Batch {
	t.Helper()
	m := mappingOf("/usr/bin/app")
	first := &samples.Stack{Locations: []*samples.Location{location(m, 0x401000, "main.hot", "main.inlined"), location(m, 0x402000, "main.main")}}
	second := &samples.Stack{Truncated: true, Wait: samples.WaitNetwork, Locations: []*samples.Location{
		{Type: samples.FrameKernel, Address: 0xffffffff81000010, Resolved: true, Lines: []samples.Line{{Function: "do_syscall_64"}}},
		location(m, 0x403000), first.Locations[1],
	}}
	span := samples.Link{TraceID: [16]byte{15: 1}, SpanID: [8]byte{7: 2}}
	b := newBatch()
	for _, typ := range types {
		for i, s := range []*samples.Stack{first, second, first} {
			k := samples.Key{Resource: resource(i % 2), Type: typ, Stack: s, Period: period, Thread: samples.Thread{Name: "worker"}}
			if typ == samples.NetSent || typ == samples.NetReceived {
				k.Period, k.Transport = 1, []samples.Transport{samples.TransportTCP, samples.TransportUnix}[i%2]
			}
			if typ.Sent {
				k.Period, k.Link = 500_000_000, span
				if typ.Valued {
					k.Period, k.AllocType = 1, "System.Byte[]"
				}
				k.Selected = typ == samples.DotnetSelected
			}
			require.True(t, b.AddValue(k, start+int64(i)*1000, int64(i+1)*24))
		}
	}
	return b
}

// TestGoldenRequests compares the bytes of each kind of request with the files in
// testdata. The order of dictionary entries and samples is deterministic.
func TestGoldenRequests(t *testing.T) {
	for name, types := range map[string][]*samples.Type{
		"on_cpu":             {samples.OnCPU},
		"off_cpu":            {samples.OffCPU, samples.RunQueue},
		"off_cpu_scaled":     {samples.OffCPUScaled, samples.RunQueueScaled},
		"allocations":        {samples.AllocObjects, samples.AllocSpace},
		"network":            {samples.NetSent, samples.NetReceived, samples.TCPConnects, samples.TCPConnectFailures},
		"dotnet_threads":     {samples.DotnetThreads, samples.DotnetSelected},
		"dotnet_allocations": {samples.DotnetAllocObjects, samples.DotnetAllocSpace},
	} {
		t.Run(name, func(t *testing.T) {
			var first []byte
			for run := range 3 {
				var all bytes.Buffer
				for p := range NewBuilder(options()).Build(goldenBatch(t, types...)) {
					r := pprofileotlp.NewExportRequestFromProfiles(p)
					wire, err := r.MarshalProto()
					require.NoError(t, err)
					for _, v := range conformancetest.CheckRequest(wire, conformancetest.Options{Triggered: true, References: true}) {
						t.Error(v)
					}
					inlined, err := inline.Request(wire)
					require.NoError(t, err)
					for _, v := range conformancetest.CheckRequest(inlined, conformancetest.Options{Triggered: true}) {
						t.Error(v)
					}
					text, err := r.MarshalJSON()
					require.NoError(t, err)
					text, err = inline.JSON(text)
					require.NoError(t, err)
					require.NoError(t, json.Indent(&all, text, "", " "))
					all.WriteByte('\n')
				}
				if run == 0 {
					first = bytes.Clone(all.Bytes())
				}
				require.Equal(t, string(first), all.String(), "a second run differs")
			}
			file := filepath.Join("../../testdata/otlp/golden", name+".json")
			if *update {
				require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
				require.NoError(t, os.WriteFile(file, first, 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err, "write it with -update")
			require.Equal(t, string(want), string(first))
		})
	}
}
