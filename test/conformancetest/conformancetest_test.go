// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package conformancetest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/test/conformancetest"
)

const (
	start    = 1_780_000_000_000_000_000
	duration = 5_000_000_000
)

// good returns a request that follows every rule. It has one resource, one profile and
// two samples. The dictionary is built entry by entry.
func good() pprofile.Profiles {
	p := pprofile.NewProfiles()
	d := p.Dictionary()
	d.StringTable().FromRaw([]string{
		"", "samples", "count", "cpu", "nanoseconds", // 0 to 4
		"profile.frame.type", "process.executable.build_id.gnu", "thread.name", // 5 to 7
		"/bin/app", "main.hot", "main.go", "main.cold", // 8 to 11
	})
	attribute := func(key int32, value string) {
		a := d.AttributeTable().AppendEmpty()
		a.SetKeyStrindex(key)
		a.Value().SetStr(value)
	}
	d.AttributeTable().AppendEmpty()
	attribute(5, "go")
	attribute(6, "abcd")
	attribute(7, "worker")

	d.MappingTable().AppendEmpty()
	m := d.MappingTable().AppendEmpty()
	m.SetMemoryStart(0x1000)
	m.SetMemoryLimit(0x2000)
	m.SetFilenameStrindex(8)
	m.AttributeIndices().Append(2)

	function := func(name int32) {
		f := d.FunctionTable().AppendEmpty()
		f.SetNameStrindex(name)
		f.SetFilenameStrindex(10)
	}
	d.FunctionTable().AppendEmpty()
	function(9)
	function(11)

	location := func(address uint64, function int32) {
		l := d.LocationTable().AppendEmpty()
		l.SetMappingIndex(1)
		l.SetAddress(address)
		l.AttributeIndices().Append(1)
		line := l.Lines().AppendEmpty()
		line.SetFunctionIndex(function)
		line.SetLine(7)
	}
	d.LocationTable().AppendEmpty()
	location(0x1100, 1)
	location(0x1200, 2)

	d.StackTable().AppendEmpty()
	d.StackTable().AppendEmpty().LocationIndices().Append(1, 2)
	d.StackTable().AppendEmpty().LocationIndices().Append(2)
	d.LinkTable().AppendEmpty()

	rp := p.ResourceProfiles().AppendEmpty()
	rp.Resource().Attributes().PutStr("service.name", "checkout")
	rp.Resource().Attributes().PutInt("process.pid", 7)
	sp := rp.ScopeProfiles().AppendEmpty()
	profile := sp.Profiles().AppendEmpty()
	profile.SetTime(start)
	profile.SetDurationNano(duration)
	profile.SetProfileID(pprofile.ProfileID{1})
	profile.SetPeriod(10_309_278)
	profile.SampleType().SetTypeStrindex(1)
	profile.SampleType().SetUnitStrindex(2)
	profile.PeriodType().SetTypeStrindex(3)
	profile.PeriodType().SetUnitStrindex(4)
	sample := func(stack int32, at ...uint64) {
		s := profile.Samples().AppendEmpty()
		s.SetStackIndex(stack)
		s.AttributeIndices().Append(3)
		s.TimestampsUnixNano().Append(at...)
	}
	sample(1, start, start+duration-1)
	sample(2, start+1)
	return p
}

// strict returns options with all additional checks.
func strict() conformancetest.Options {
	return conformancetest.Options{Triggered: true, BuildIDs: true, Now: time.Unix(0, start+duration), MaxLabels: 20}
}

func profile(p pprofile.Profiles) pprofile.Profile {
	return p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0)
}

func resource(p pprofile.Profiles) pcommon.Map {
	return p.ResourceProfiles().At(0).Resource().Attributes()
}

func sample(p pprofile.Profiles) pprofile.Sample { return profile(p).Samples().At(0) }

// addString adds a string and returns its index.
func addString(p pprofile.Profiles, s string) int32 {
	p.Dictionary().StringTable().Append(s)
	return int32(p.Dictionary().StringTable().Len() - 1)
}

// addAttribute adds an attribute and returns its index.
func addAttribute(p pprofile.Profiles, key string, set func(pcommon.Value)) int32 {
	k := addString(p, key)
	a := p.Dictionary().AttributeTable().AppendEmpty()
	a.SetKeyStrindex(k)
	set(a.Value())
	return int32(p.Dictionary().AttributeTable().Len() - 1)
}

func TestValidProfilesBreakNoRule(t *testing.T) {
	conformancetest.CheckFatal(t, good(), strict())
}

func TestCheckDoesNotChangeProfiles(t *testing.T) {
	p := good()
	p.MarkReadOnly() // a change of read-only profiles would panic
	require.Empty(t, conformancetest.Check(p, strict()))
}

// damage changes good profiles in a way that breaks one rule. where is
// a part of the violation's text.
type damage struct {
	name  string
	rule  conformancetest.Rule
	where string
	do    func(pprofile.Profiles)
}

func damages() []damage {
	return []damage{
		{"the string table starts with a name", conformancetest.ZeroEntry, "string", func(p pprofile.Profiles) {
			p.Dictionary().StringTable().SetAt(0, "zero")
		}},
		{"the attribute table starts with an attribute", conformancetest.ZeroEntry, "attribute", func(p pprofile.Profiles) {
			p.Dictionary().AttributeTable().At(0).Value().SetBool(true)
		}},
		{"the function table starts with a function", conformancetest.ZeroEntry, "function", func(p pprofile.Profiles) {
			p.Dictionary().FunctionTable().At(0).SetStartLine(1)
		}},
		{"the mapping table starts with a mapping", conformancetest.ZeroEntry, "mapping", func(p pprofile.Profiles) {
			p.Dictionary().MappingTable().At(0).SetMemoryLimit(1)
		}},
		{"the location table starts with a location", conformancetest.ZeroEntry, "location", func(p pprofile.Profiles) {
			p.Dictionary().LocationTable().At(0).SetAddress(1)
		}},
		{"the stack table starts with a stack", conformancetest.ZeroEntry, "stack", func(p pprofile.Profiles) {
			p.Dictionary().StackTable().At(0).LocationIndices().Append(1)
		}},
		{"the link table starts with a link", conformancetest.ZeroEntry, "link", func(p pprofile.Profiles) {
			p.Dictionary().LinkTable().At(0).SetTraceID(pcommon.TraceID{1})
		}},

		{"a string that nothing names", conformancetest.Orphan, `string 12 is used by nothing: "lost"`, func(p pprofile.Profiles) {
			addString(p, "lost")
		}},
		{"a stack that no sample has", conformancetest.Orphan, "stack 3", func(p pprofile.Profiles) {
			p.Dictionary().StackTable().AppendEmpty().LocationIndices().Append(1)
		}},
		{"a link that no sample has", conformancetest.Orphan, "link 1", func(p pprofile.Profiles) {
			l := p.Dictionary().LinkTable().AppendEmpty()
			l.SetTraceID(pcommon.TraceID{1})
			l.SetSpanID(pcommon.SpanID{1})
		}},
		{"an attribute that nothing has", conformancetest.Orphan, "attribute 4", func(p pprofile.Profiles) {
			a := p.Dictionary().AttributeTable().AppendEmpty()
			a.SetKeyStrindex(7)
			a.Value().SetStr("idle")
		}},
		{"a function of no line", conformancetest.Orphan, "function 3", func(p pprofile.Profiles) {
			p.Dictionary().FunctionTable().AppendEmpty().SetNameStrindex(10)
		}},
		{"a mapping of no location", conformancetest.Orphan, "mapping 2", func(p pprofile.Profiles) {
			p.Dictionary().MappingTable().AppendEmpty().SetMemoryStart(5)
		}},
		{"a location of no stack", conformancetest.Orphan, "location 3", func(p pprofile.Profiles) {
			p.Dictionary().LocationTable().AppendEmpty().SetAddress(5)
		}},

		{"a string twice", conformancetest.Duplicate, "strings 9 and 11", func(p pprofile.Profiles) {
			p.Dictionary().StringTable().SetAt(11, "main.hot")
		}},
		{"an attribute twice", conformancetest.Duplicate, "attributes 1 and 4", func(p pprofile.Profiles) {
			p.Dictionary().AttributeTable().At(1).CopyTo(p.Dictionary().AttributeTable().AppendEmpty())
			p.Dictionary().LocationTable().At(2).AttributeIndices().SetAt(0, 4)
		}},
		{"a stack twice", conformancetest.Duplicate, "stacks 1 and 3", func(p pprofile.Profiles) {
			p.Dictionary().StackTable().AppendEmpty().LocationIndices().Append(1, 2)
			profile(p).Samples().At(1).SetStackIndex(3)
			s := profile(p).Samples().AppendEmpty()
			s.SetStackIndex(2)
			s.TimestampsUnixNano().Append(start)
		}},

		{"a stack out of range", conformancetest.IndexRange, "stack 9 of 3", func(p pprofile.Profiles) {
			s := profile(p).Samples().AppendEmpty()
			s.SetStackIndex(9)
			s.TimestampsUnixNano().Append(start)
		}},
		{"a negative location", conformancetest.IndexRange, "location -1 of 3", func(p pprofile.Profiles) {
			p.Dictionary().StackTable().At(1).LocationIndices().Append(-1)
		}},
		{"a mapping out of range", conformancetest.IndexRange, "mapping 2 of 2", func(p pprofile.Profiles) {
			p.Dictionary().LocationTable().At(1).SetMappingIndex(2)
		}},
		{"a function out of range", conformancetest.IndexRange, "function 9 of 3", func(p pprofile.Profiles) {
			p.Dictionary().LocationTable().At(1).Lines().AppendEmpty().SetFunctionIndex(9)
		}},
		{"an attribute out of range", conformancetest.IndexRange, "attribute 9 of 4", func(p pprofile.Profiles) {
			sample(p).AttributeIndices().Append(9)
		}},
		{"a string out of range", conformancetest.IndexRange, "string 99 of 12", func(p pprofile.Profiles) {
			p.Dictionary().FunctionTable().At(1).SetSystemNameStrindex(99)
		}},
		{"a link out of range", conformancetest.IndexRange, "link 1 of 1", func(p pprofile.Profiles) {
			sample(p).SetLinkIndex(1)
		}},

		{"a string that is not UTF-8", conformancetest.UTF8, "string 9", func(p pprofile.Profiles) {
			p.Dictionary().StringTable().SetAt(9, "main.\xff")
		}},
		{"a thread name that is not UTF-8", conformancetest.UTF8, "attribute 3", func(p pprofile.Profiles) {
			p.Dictionary().AttributeTable().At(3).Value().SetStr("\xfe")
		}},
		{"a resource attribute that is not UTF-8", conformancetest.UTF8, "resource 0", func(p pprofile.Profiles) {
			resource(p).PutStr("service.name", "\xfe")
		}},

		{"a sample without a stack", conformancetest.NoStack, "sample 2", func(p pprofile.Profiles) {
			profile(p).Samples().AppendEmpty().TimestampsUnixNano().Append(start)
		}},
		{"timestamps and values", conformancetest.SampleShape, "1 values and 2 timestamps", func(p pprofile.Profiles) {
			sample(p).Values().Append(2)
		}},
		{"neither timestamps nor values", conformancetest.SampleShape, "0 values and 0 timestamps", func(p pprofile.Profiles) {
			sample(p).TimestampsUnixNano().FromRaw(nil)
		}},
		{"a stack and its attributes in two samples", conformancetest.SampleTwice, "as sample 0", func(p pprofile.Profiles) {
			sample(p).CopyTo(profile(p).Samples().AppendEmpty())
		}},
		{"a timestamp before the window", conformancetest.TimestampWindow, "sample 0", func(p pprofile.Profiles) {
			sample(p).TimestampsUnixNano().SetAt(0, start-1)
		}},
		{"a timestamp at the window's end", conformancetest.TimestampWindow, "sample 0", func(p pprofile.Profiles) {
			sample(p).TimestampsUnixNano().SetAt(1, start+duration)
		}},
		{"a profile of two hours ago", conformancetest.Recent, "profile 0", func(p pprofile.Profiles) {
			const ago = 7200e9
			profile(p).SetTime(start - ago)
			for _, s := range profile(p).Samples().All() {
				for i, at := range s.TimestampsUnixNano().All() {
					s.TimestampsUnixNano().SetAt(i, at-ago)
				}
			}
		}},
		{"no period", conformancetest.Period, "period 0", func(p pprofile.Profiles) { profile(p).SetPeriod(0) }},
		{"a type that nobody knows", conformancetest.KnownType, `"heat/count"`, func(p pprofile.Profiles) {
			p.Dictionary().StringTable().SetAt(1, "heat")
		}},
		{"no profile id", conformancetest.ProfileID, "profile 0", func(p pprofile.Profiles) {
			profile(p).SetProfileID(pprofile.ProfileID{})
		}},
		{"a link without a span", conformancetest.LinkIDs, "link 1", func(p pprofile.Profiles) {
			p.Dictionary().LinkTable().AppendEmpty().SetTraceID(pcommon.TraceID{1})
			sample(p).SetLinkIndex(1)
		}},
		{"a profile without samples", conformancetest.NoSamples, "profile 1", func(p pprofile.Profiles) {
			second := p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().AppendEmpty()
			profile(p).CopyTo(second)
			second.SetTime(start - 1)
			second.Samples().RemoveIf(func(pprofile.Sample) bool { return true })
		}},
		{"a resource without profiles", conformancetest.NoSamples, "resource 1", func(p pprofile.Profiles) {
			p.ResourceProfiles().AppendEmpty().Resource().Attributes().PutStr("service.name", "idle")
		}},
		{"27 labels", conformancetest.LabelCount, "27 labels", func(p pprofile.Profiles) {
			for i := range 24 {
				resource(p).PutStr(fmt.Sprint("k8s.label.", i), "x")
			}
		}},
		{"21 labels", conformancetest.LabelPromise, "21 labels", func(p pprofile.Profiles) {
			for i := range 18 {
				resource(p).PutStr(fmt.Sprint("k8s.label.", i), "x")
			}
		}},
		{"a label of 2049 bytes", conformancetest.LabelLength, "thread.name of 11 and 2049 bytes", func(p pprofile.Profiles) {
			p.Dictionary().AttributeTable().At(3).Value().SetStr(strings.Repeat("w", 2049))
		}},
		{"a label's name of 1025 bytes", conformancetest.LabelLength, "1025 and 1 bytes", func(p pprofile.Profiles) {
			resource(p).PutStr(strings.Repeat("k", 1025), "x")
		}},
		{"labels that are one where dots are underscores", conformancetest.LabelCollision, "service.name and service_name", func(p pprofile.Profiles) {
			resource(p).PutStr("service_name", "checkout")
		}},
		{"an attribute of a location without a value", conformancetest.AttributeType, "without a value", func(p pprofile.Profiles) {
			p.Dictionary().LocationTable().At(1).AttributeIndices().Append(addAttribute(p, "empty", func(pcommon.Value) {}))
		}},
		{"a resource attribute without a value", conformancetest.AttributeType, "empty of type Empty", func(p pprofile.Profiles) {
			resource(p).PutEmpty("empty")
		}},
		{"a service that is unknown though its program is known", conformancetest.ServiceName, "want unknown_service:app", func(p pprofile.Profiles) {
			resource(p).PutStr("service.name", "unknown_service")
			resource(p).PutStr("process.executable.name", "app")
		}},
		{"a service name that is a number", conformancetest.ServiceName, "of type Int", func(p pprofile.Profiles) {
			resource(p).PutInt("service.name", 7)
		}},
		{"a stack of 1001 frames", conformancetest.StackDepth, "sample 0, stack 1 has 1001 locations", func(p pprofile.Profiles) {
			deep := make([]int32, 1001)
			for i := range deep {
				deep[i] = int32(i%2) + 1
			}
			p.Dictionary().StackTable().At(1).LocationIndices().FromRaw(deep)
		}},
		{"a mapping that ends before it starts", conformancetest.MappingRange, "mapping 1 is 0x1000-0xfff", func(p pprofile.Profiles) {
			p.Dictionary().MappingTable().At(1).SetMemoryLimit(0xfff)
		}},
		{"a mapping of no bytes", conformancetest.MappingRange, "0x1000-0x1000", func(p pprofile.Profiles) {
			p.Dictionary().MappingTable().At(1).SetMemoryLimit(0x1000)
		}},
		{"a line below zero", conformancetest.LineNumber, "location 1 is at -1:0", func(p pprofile.Profiles) {
			p.Dictionary().LocationTable().At(1).Lines().At(0).SetLine(-1)
		}},
		{"a function that starts below zero", conformancetest.LineNumber, "function 1 starts at line -2", func(p pprofile.Profiles) {
			p.Dictionary().FunctionTable().At(1).SetStartLine(-2)
		}},
		{"no resource", conformancetest.EmptyRequest, "no resource", func(p pprofile.Profiles) {
			p.ResourceProfiles().RemoveIf(func(pprofile.ResourceProfiles) bool { return true })
		}},
		{"two values", conformancetest.OneValue, "sample 0 has 2 values", func(p pprofile.Profiles) {
			sample(p).Values().Append(1, 2)
		}},
		{"a type with a dash", conformancetest.TypeName, `"cpu-samples/count"`, func(p pprofile.Profiles) {
			p.Dictionary().StringTable().SetAt(1, "cpu-samples")
		}},
		{"a profile of the hour to come", conformancetest.Recent, "profile 0", func(p pprofile.Profiles) {
			const ahead = 3600e9
			profile(p).SetTime(start + ahead)
			for _, s := range profile(p).Samples().All() {
				for i, at := range s.TimestampsUnixNano().All() {
					s.TimestampsUnixNano().SetAt(i, at+ahead)
				}
			}
		}},
		{"a period type without a unit", conformancetest.Period, `"cpu/"`, func(p pprofile.Profiles) {
			profile(p).PeriodType().SetUnitStrindex(0)
		}},
		{"samples told apart by CPU number", conformancetest.SeriesPerSample, "cpu.logical_number", func(p pprofile.Profiles) {
			sample(p).AttributeIndices().Append(addAttribute(p, "cpu.logical_number", func(v pcommon.Value) { v.SetInt(3) }))
		}},
		{"a resource attribute that is a list", conformancetest.AttributeType, "process.command_args", func(p pprofile.Profiles) {
			resource(p).PutEmptySlice("process.command_args")
		}},
		{"a profile attribute that is a map", conformancetest.AttributeType, "reason", func(p pprofile.Profiles) {
			profile(p).AttributeIndices().Append(addAttribute(p, "reason", func(v pcommon.Value) { v.SetEmptyMap() }))
		}},
		{"a number of ours on a profile", conformancetest.TextAttribute, "hotprofile.lost of type Int", func(p pprofile.Profiles) {
			profile(p).AttributeIndices().Append(addAttribute(p, "hotprofile.lost", func(v pcommon.Value) { v.SetInt(3) }))
		}},
		{"a boolean of ours on a resource", conformancetest.TextAttribute, "hotprofile.hot of type Bool", func(p pprofile.Profiles) {
			resource(p).PutBool("hotprofile.hot", true)
		}},
		{"a resource attribute without a key", conformancetest.AttributeKey, "resource 0", func(p pprofile.Profiles) {
			resource(p).PutStr("", "x")
		}},
		{"a sample attribute twice", conformancetest.AttributeKey, "thread.name", func(p pprofile.Profiles) {
			a := p.Dictionary().AttributeTable().AppendEmpty()
			a.SetKeyStrindex(7)
			a.Value().SetStr("other")
			sample(p).AttributeIndices().Append(4)
		}},
		{"no service name", conformancetest.ServiceName, "resource 0", func(p pprofile.Profiles) {
			resource(p).Remove("service.name")
		}},
		{"a location without a frame type", conformancetest.FrameType, `location 1 has profile.frame.type ""`, func(p pprofile.Profiles) {
			p.Dictionary().LocationTable().At(1).AttributeIndices().FromRaw(nil)
		}},
		{"a frame type that nobody knows", conformancetest.FrameType, "cobol", func(p pprofile.Profiles) {
			p.Dictionary().AttributeTable().At(1).Value().SetStr("cobol")
		}},
		{"a location outside of its mapping", conformancetest.LocationPlace, "0x3000", func(p pprofile.Profiles) {
			p.Dictionary().LocationTable().At(1).SetAddress(0x3000)
		}},
		{"a file without a build id", conformancetest.BuildID, "/bin/app", func(p pprofile.Profiles) {
			p.Dictionary().AttributeTable().At(2).Value().SetStr("")
		}},
		{"two profiles of a series that begin at the same time", conformancetest.DistinctTimes, "profile 1 begins", func(p pprofile.Profiles) {
			resource(p).Remove("process.pid")
			second := p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().AppendEmpty()
			profile(p).CopyTo(second)
		}},
		{"a profile without a window", conformancetest.CaptureWindow, "lasts 0 ns", func(p pprofile.Profiles) {
			second := p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().AppendEmpty()
			profile(p).CopyTo(second)
			second.SetTime(start - 1)
			second.SetDurationNano(0)
			for _, s := range second.Samples().All() {
				s.TimestampsUnixNano().FromRaw(nil)
			}
		}},
		{"a profile above the limit of samples", conformancetest.MaxSamples, "8001 samples", func(p pprofile.Profiles) {
			d := p.Dictionary()
			for profile(p).Samples().Len() < 8001 {
				stack := d.StackTable().Len()
				d.StackTable().AppendEmpty().LocationIndices().FromRaw(binary(stack))
				s := profile(p).Samples().AppendEmpty()
				s.SetStackIndex(int32(stack))
				s.TimestampsUnixNano().Append(start)
			}
		}},
		{"a profile above the limit of bytes", conformancetest.MaxProfileBytes, "bytes, at most 1048576", func(p pprofile.Profiles) {
			stamps := make([]uint64, 1<<20/8)
			for i := range stamps {
				stamps[i] = start
			}
			sample(p).TimestampsUnixNano().FromRaw(stamps)
		}},
		{"a request above the limit of bytes", conformancetest.MaxRequestBytes, "bytes, at most 2097152", func(p pprofile.Profiles) {
			p.Dictionary().StringTable().SetAt(9, strings.Repeat("x", 2<<20))
		}},
	}
}

func TestEachRuleIsReportedWhenBrokenAndNoOther(t *testing.T) {
	for _, tc := range damages() {
		t.Run(tc.name, func(t *testing.T) {
			p := good()
			tc.do(p)
			var got []string
			for _, v := range conformancetest.Check(p, strict()) {
				t.Log(v)
				require.Positive(t, v.Count)
				require.NotEmpty(t, v.Backends)
				if got = append(got, v.Name); v.Rule == tc.rule {
					require.Contains(t, v.Where, tc.where)
				}
			}
			want := []string{tc.rule.Name}
			for _, r := range together()[tc.name] {
				want = append(want, r.Name)
			}
			require.ElementsMatch(t, want, got)
		})
	}
}

// binary returns a different stack for each number.
func binary(n int) []int32 {
	var out []int32
	for ; n > 0; n /= 2 {
		out = append(out, int32(n%2)+1)
	}
	return out
}

func TestStringsOfReferencedAttributesAreNotOrphans(t *testing.T) {
	p := good()
	addString(p, "service.name")
	addString(p, "checkout")
	opts := strict()
	require.NotEmpty(t, conformancetest.Check(p, opts))
	opts.References = true
	conformancetest.CheckFatal(t, p, opts)
}

func FuzzCheck(f *testing.F) {
	marshal := func(p pprofile.Profiles) []byte {
		b, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(p)
		require.NoError(f, err)
		return b
	}
	f.Add(marshal(good()))
	f.Add(marshal(pprofile.NewProfiles()))
	f.Fuzz(func(t *testing.T, in []byte) {
		p, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(in)
		if err != nil {
			return
		}
		conformancetest.Check(p, strict())
	})
}

// allocated turns the good profile into a profile of allocations. Each sample has a
// value, a timestamp and a span.
func allocated(p pprofile.Profiles) {
	d := p.Dictionary()
	for i, s := range map[int]string{1: "alloc_space", 2: "bytes", 3: "space", 4: "bytes"} {
		d.StringTable().SetAt(i, s)
	}
	d.StringTable().SetAt(4, "hotprofile.alloc.type")
	profile(p).PeriodType().SetUnitStrindex(2)
	link := d.LinkTable().AppendEmpty()
	link.SetTraceID(pcommon.TraceID{1})
	link.SetSpanID(pcommon.SpanID{1})
	a := d.AttributeTable().AppendEmpty()
	a.SetKeyStrindex(4)
	a.Value().SetStr("T")
	for _, s := range profile(p).Samples().All() {
		s.TimestampsUnixNano().FromRaw([]uint64{start})
		s.Values().Append(24)
		s.SetLinkIndex(1)
		s.AttributeIndices().Append(4)
	}
}

func TestTypesThatBackendsKnow(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(pprofile.Profiles)
		broken []conformancetest.Rule
	}{
		"wall-clock": {change: func(p pprofile.Profiles) { p.Dictionary().StringTable().SetAt(3, "wall") }},
		"wall-clock with values": {change: func(p pprofile.Profiles) {
			p.Dictionary().StringTable().SetAt(3, "wall")
			sample(p).Values().Append(1)
		}, broken: []conformancetest.Rule{conformancetest.SampleShape}},
		"allocations": {change: allocated},
		"two allocations of a stack": {change: func(p pprofile.Profiles) {
			allocated(p)
			sample(p).CopyTo(profile(p).Samples().AppendEmpty())
		}},
		"an allocation without its value": {change: func(p pprofile.Profiles) {
			allocated(p)
			sample(p).Values().FromRaw(nil)
		}, broken: []conformancetest.Rule{conformancetest.SampleShape}},
		"two allocations in one sample": {change: func(p pprofile.Profiles) {
			allocated(p)
			sample(p).TimestampsUnixNano().Append(start)
		}, broken: []conformancetest.Rule{conformancetest.SampleShape}},
		"allocations by the clock": {change: func(p pprofile.Profiles) {
			allocated(p)
			p.Dictionary().StringTable().SetAt(3, "wall")
		}, broken: []conformancetest.Rule{conformancetest.KnownType, conformancetest.SampleShape}},
	} {
		t.Run(name, func(t *testing.T) {
			p := good()
			tc.change(p)
			var got []conformancetest.Rule
			for _, v := range conformancetest.Check(p, strict()) {
				got = append(got, v.Rule)
			}
			require.Equal(t, tc.broken, got)
		})
	}
}

// together maps the name of a fault to the additional rules that the fault breaks.
func together() map[string][]conformancetest.Rule {
	everything := []conformancetest.Rule{conformancetest.Orphan}
	return map[string][]conformancetest.Rule{
		"27 labels":                    {conformancetest.LabelPromise},
		"no resource":                  everything,
		"two values":                   {conformancetest.SampleShape},
		"a type with a dash":           {conformancetest.KnownType},
		"a period type without a unit": {conformancetest.KnownType, conformancetest.Orphan},
		"a profile without a window":   {conformancetest.SampleShape},
	}
}
