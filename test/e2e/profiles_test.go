// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
)

// profile is a profile of a batch with resolved indices.
type profile struct {
	resource, attributes map[string]any
	sampleType           string
	start, end           time.Time
	samples              []sample
}

type sample struct {
	functions  []string // the leaf is first
	events     int
	times      []uint64
	value      int64 // 0 if the sample has no value
	thread     string
	wait       string // the reason why the thread waited, if known
	truncated  bool
	linked     bool
	trace      string // the trace id in hexadecimal digits, if linked
	attributes map[string]any
}

func (p profile) events() (n int) {
	for _, s := range p.samples {
		n += s.events
	}
	return n
}

func (p profile) str(key string) string { s, _ := p.attributes[key].(string); return s }

// service returns the service in the profile's resource.
func (p profile) service() string { s, _ := p.resource["service.name"].(string); return s }

func flatten(batches []pprofile.Profiles) (out []profile) {
	for _, b := range batches {
		d := b.Dictionary()
		for _, rp := range b.ResourceProfiles().All() {
			for _, sp := range rp.ScopeProfiles().All() {
				for _, p := range sp.Profiles().All() {
					f := profile{
						resource:   rp.Resource().Attributes().AsRaw(),
						attributes: attributes(d, p.AttributeIndices()),
						sampleType: d.StringTable().At(int(p.SampleType().TypeStrindex())),
						start:      p.Time().AsTime(),
					}
					f.end = f.start.Add(time.Duration(p.DurationNano()))
					for _, s := range p.Samples().All() {
						f.samples = append(f.samples, flattenSample(d, s))
					}
					out = append(out, f)
				}
			}
		}
	}
	return out
}

func flattenSample(d pprofile.ProfilesDictionary, s pprofile.Sample) sample {
	of := attributes(d, s.AttributeIndices())
	f := sample{events: max(s.TimestampsUnixNano().Len(), 1), times: s.TimestampsUnixNano().AsRaw(), attributes: of, linked: s.LinkIndex() > 0}
	if f.linked {
		f.trace = d.LinkTable().At(int(s.LinkIndex())).TraceID().String()
	}
	if s.Values().Len() > 0 {
		f.value = s.Values().At(0)
	}
	f.thread, _ = of["thread.name"].(string)
	f.wait, _ = of["hotprofile.wait"].(string)
	_, f.truncated = of["hotprofile.stack.truncated"]
	for _, l := range d.StackTable().At(int(s.StackIndex())).LocationIndices().All() {
		for _, line := range d.LocationTable().At(int(l)).Lines().All() {
			fn := d.FunctionTable().At(int(line.FunctionIndex()))
			f.functions = append(f.functions, d.StringTable().At(int(fn.NameStrindex())))
		}
	}
	return f
}

func attributes(d pprofile.ProfilesDictionary, indices pcommon.Int32Slice) map[string]any {
	m := map[string]any{}
	for _, i := range indices.All() {
		a := d.AttributeTable().At(int(i))
		m[d.StringTable().At(int(a.KeyStrindex()))] = a.Value().AsRaw()
	}
	return m
}

// shares counts events by name. An event counts for one of the given names if the name of
// its leaf function ends with the given name.
func shares(profiles []profile, names ...string) map[string]int {
	m := map[string]int{}
	for _, p := range profiles {
		for _, s := range p.samples {
			for _, n := range names {
				if len(s.functions) > 0 && strings.HasSuffix(s.functions[0], n) {
					m[n] += s.events
				}
			}
		}
	}
	return m
}
