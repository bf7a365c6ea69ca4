// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprofconv

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
	"github.com/hotprofile/hotprofile/test/pprofstest"
)

func profileOf(p pprofile.Profiles) pprofile.Profile {
	return p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().At(0)
}

// TestProfileThatIsAddedInPartsIsTheSame compares two builders. One builder is never full
// and adds the whole profile at once. The other builder adds the profile in parts.
func TestProfileThatIsAddedInPartsIsTheSame(t *testing.T) {
	in := pprofstest.Input{Resource: pprofstest.Checkout(), Profile: pprofstest.Reason("a", "t1", ""), Hot: 3, Cold: 4, Stacks: 50}.Build(t)
	d := dictionary.NewReader(in.Dictionary())
	p := profileOf(in)
	whole, parts := NewBuilder(TypeOf(d, p), Options{}), NewBuilder(TypeOf(d, p), Options{})
	a := whole.Add(d, Part{Profile: p}, Attributes(d, p), 0, 1<<30)
	require.Equal(t, Addition{Next: 52, Sum: 57}, a)
	sum, n := 0.0, 0
	for next := 0; next < p.Samples().Len(); n++ {
		a := parts.Add(d, Part{Profile: p}, Attributes(d, p), next, 2000)
		require.Greater(t, a.Next, next)
		next = a.Next
		sum += a.Sum
	}
	require.Greater(t, n, 5)
	require.InDelta(t, 57, sum, 0)
	require.Equal(t, whole.Size(), parts.Size())
	require.Equal(t, whole.Finish("").String(), parts.Finish("").String())
}

// TestCPUTimeOfProcessesIsSummed checks that the CPU time of a profile counts once, even
// if the profile is added in parts.
func TestCPUTimeOfProcessesIsSummed(t *testing.T) {
	b := NewBuilder(dictionary.ProfileType{Sample: "samples", Unit: "count", Period: "cpu", PeriodUnit: "nanoseconds"}, Options{})
	for _, cpuTime := range []string{"2000000000", "500000000", "-7", "much"} {
		in := pprofstest.Input{Profile: map[string]string{"hotprofile.cpu.time": cpuTime}, Hot: 3, Cold: 4, Stacks: 50}.Build(t)
		d := dictionary.NewReader(in.Dictionary())
		p := profileOf(in)
		for next := 0; next < p.Samples().Len(); {
			next = b.Add(d, Part{Profile: p}, Attributes(d, p), next, 2000).Next
		}
	}
	require.EqualValues(t, 2_500_000_000, b.CPUTime)
	require.Equal(t, []string{"hotprofile.cpu.time.sampled=1140000000", "hotprofile.cpu.time=2500000000"}, b.Finish("").Comments)
}

// TestSamplesOfDifferentPhasesStayApart configures an attribute of profiles as a label of
// samples. The attribute must then not become a comment.
func TestSamplesOfDifferentPhasesStayApart(t *testing.T) {
	const phase = "hotprofile.trigger.phase"
	b := NewBuilder(dictionary.ProfileType{Sample: "samples", Unit: "count", Period: "cpu", PeriodUnit: "nanoseconds"}, Options{Labels: []string{phase}})
	add := func(of string, hot, cold int) {
		attributes := pprofstest.Reason("a", "t1", "")
		if of != "" {
			attributes[phase] = of
		}
		in := pprofstest.Input{Profile: attributes, Hot: hot, Cold: cold}.Build(t)
		d := dictionary.NewReader(in.Dictionary())
		p := profileOf(in)
		b.Add(d, Part{Profile: p}, Attributes(d, p), 0, 1<<30)
	}
	add("before", 5, 1)
	add("after", 3, 0)
	add("before", 2, 0)
	add("", 1, 0)
	out := b.Finish("")
	require.NoError(t, out.CheckValid())
	got := map[string]int64{}
	for _, s := range out.Sample {
		key := leaf(s)
		for _, l := range s.Label[phase] {
			key += " " + l
		}
		for _, l := range s.Label["thread.name"] {
			key += " " + l
		}
		got[key] += s.Value[0]
	}
	require.Equal(t, map[string]int64{"main.hot before": 7, "main.cold before worker": 1, "main.hot after": 3, "main.hot": 1}, got)
	require.Contains(t, out.Comments, "hotprofile.trigger.id=t1")
	for _, c := range out.Comments {
		require.NotContains(t, c, phase)
	}
	require.Equal(t, 12, b.Events())
}

// FuzzBuilder checks that any profiles of two senders become one valid profile per type.
// Each sample must occur once.
func FuzzBuilder(f *testing.F) {
	attributes := pprofstest.Reason("a", "t1", "")
	attributes["hotprofile.trigger.phase"] = "before"
	seed := pprofile.NewProfiles()
	pprofstest.Input{Resource: pprofstest.Checkout(), Profile: attributes, Hot: 3, Cold: 2, Stacks: 20}.Build(f).CopyTo(seed)
	marshalled, err := (&pprofile.ProtoMarshaler{}).MarshalProfiles(seed)
	require.NoError(f, err)
	f.Add(marshalled, marshalled)
	f.Fuzz(func(t *testing.T, one, other []byte) {
		builders := map[dictionary.ProfileType]*Builder{}
		sent, got := int64(0), int64(0)
		for _, in := range [][]byte{one, other} {
			p, err := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles(in)
			if err != nil {
				return
			}
			d := dictionary.NewReader(p.Dictionary())
			for _, rp := range p.ResourceProfiles().All() {
				for _, sp := range rp.ScopeProfiles().All() {
					for _, of := range sp.Profiles().All() {
						typ := TypeOf(d, of)
						b := builders[typ]
						if b == nil {
							b = NewBuilder(typ, Options{Labels: []string{"hotprofile.trigger.phase"}})
							builders[typ] = b
						}
						for _, part := range PartsOf(typ, of) {
							sent += part.Events(0)
							for from := 0; from < part.Len(); {
								a := b.Add(d, part, Attributes(d, of), from, 4<<10)
								require.Greater(t, a.Next, from)
								from = a.Next
								got += int64(a.Malformed)
							}
						}
					}
				}
			}
		}
		for _, b := range builders {
			out := b.Finish("/bin/app")
			Hottest(out, 5)
			require.NoError(t, out.CheckValid())
			got += int64(b.Events())
		}
		require.Equal(t, sent, got)
	})
}
