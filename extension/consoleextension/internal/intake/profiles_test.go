// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package intake

import (
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/dictionary"
)

func TestOpeningOfAttributes(t *testing.T) {
	attributes := map[string]string{
		"hotprofile.unit":              "0a1b",
		"hotprofile.trigger.id":        "5f0e9a4e6a3b1c22",
		"hotprofile.trigger.policy":    "cpu,memory",
		"hotprofile.trigger.monitor":   "cpu_utilization",
		"hotprofile.trigger.value":     "93.5",
		"hotprofile.trigger.threshold": "80",
		"hotprofile.trigger.window":    "30s average",
		"hotprofile.trigger.time":      "2026-05-28T20:26:42.5Z",
		"hotprofile.trigger.until":     "2026-05-28T20:27:12.5Z",
		"hotprofile.trigger.phase":     "before",
	}
	at := time.Date(2026, 5, 28, 20, 26, 42, 500_000_000, time.UTC)
	want := store.Opening{
		ID: "5f0e9a4e6a3b1c22", Unit: store.Unit{Host: "node-1", Name: "0a1b", Resource: map[string]string{"service.name": "checkout"}},
		Policy: "cpu", Kind: "hot", Monitor: "cpu_utilization", Window: "30s average", Value: 93.5, Threshold: 80,
		Triggered: at, Until: at.Add(30 * time.Second),
	}
	r := resource{all: map[string]string{"host.name": "node-1"}, kept: want.Unit.Resource}
	require.Equal(t, want, openingOfProfile(attributes, r))

	r.all["hotprofile.trigger.policy"], r.all["hotprofile.trigger.kind"] = "a,b", "alert"
	want.Policy, want.Kind = "a,b", "alert"
	require.Equal(t, want, openingOfProfile(attributes, r), "the resource has them as they are")

	r.all["hotprofile.trigger.policy"], r.all["hotprofile.trigger.kind"] = "", ""
	for _, tc := range []struct{ key, value, kind string }{
		{"hotprofile.trigger.phase", "baseline", "baseline"},
		{"hotprofile.trigger.window", "manual", "manual"},
		{"hotprofile.trigger.window", "alert", "alert"},
	} {
		attributes[tc.key] = tc.value
		require.Equal(t, tc.kind, openingOfProfile(attributes, r).Kind)
	}
	for _, bad := range []string{"NaN", "-Inf", "1e999", "x", ""} {
		attributes["hotprofile.trigger.value"] = bad
		require.Zero(t, openingOfProfile(attributes, r).Value, bad)
	}
	for _, bad := range []string{"0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "now", ""} {
		attributes["hotprofile.trigger.time"] = bad
		require.Zero(t, openingOfProfile(attributes, r).Triggered, bad)
	}
}

// request returns a request with one profile of n samples and the given attributes.
// change can modify the profile.
func request(host, service string, attributes map[string]string, samples int, change func(pprofile.ProfilesDictionary, pprofile.Profile)) pprofile.Profiles {
	in := pprofile.NewProfiles()
	d := in.Dictionary()
	dictionary.AppendZeroEntries(d)
	text := func(s string) int32 {
		d.StringTable().Append(s)
		return int32(d.StringTable().Len() - 1)
	}
	rp := in.ResourceProfiles().AppendEmpty()
	rp.Resource().Attributes().PutStr("host.name", host)
	rp.Resource().Attributes().PutStr("service.name", service)
	p := rp.ScopeProfiles().AppendEmpty().Profiles().AppendEmpty()
	p.SampleType().SetTypeStrindex(text("samples"))
	p.SampleType().SetUnitStrindex(text("count"))
	p.PeriodType().SetTypeStrindex(text("cpu"))
	p.PeriodType().SetUnitStrindex(text("nanoseconds"))
	p.SetPeriod(10_000_000)
	for _, k := range slices.Sorted(maps.Keys(attributes)) {
		a := d.AttributeTable().AppendEmpty()
		a.SetKeyStrindex(text(k))
		a.Value().SetStr(attributes[k])
		p.AttributeIndices().Append(int32(d.AttributeTable().Len() - 1))
	}
	f := d.FunctionTable().AppendEmpty()
	f.SetNameStrindex(text("main.hot"))
	d.LocationTable().AppendEmpty().Lines().AppendEmpty().SetFunctionIndex(1)
	d.StackTable().AppendEmpty().LocationIndices().Append(1)
	for range samples {
		s := p.Samples().AppendEmpty()
		s.SetStackIndex(1)
		s.Values().Append(1)
	}
	if change != nil {
		change(d, p)
	}
	return in
}

func gate(id string) map[string]string {
	return map[string]string{
		"hotprofile.unit": "0a1b", "hotprofile.trigger.id": id, "hotprofile.trigger.phase": "both",
		"hotprofile.trigger.time": time.Now().UTC().Format(time.RFC3339Nano),
	}
}

// TestWhatStrangersSendIsBounded checks the limits on disk space, on
// memory and on file names.
func TestWhatStrangersSendIsBounded(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "console")
	to, err := store.Open(store.Options{Directory: dir, MaxBytes: 16 << 20})
	require.NoError(t, err)
	huge := strings.Repeat("../<script>", 2<<20/11)
	long := gate("long")
	for k := range long {
		if k != "hotprofile.trigger.id" && k != "hotprofile.unit" {
			long[k] = huge
		}
	}
	many := gate("many")
	for i := range 1000 {
		many[fmt.Sprint("hotprofile.x", i)] = "y"
	}
	const samples = 1000
	requests := map[string]func() pprofile.Profiles{
		"a service of 2 MB":      func() pprofile.Profiles { return request("h", huge, gate("service"), samples, nil) },
		"a host of 2 MB":         func() pprofile.Profiles { return request(huge, "s", gate("host"), samples, nil) },
		"attributes of 2 MB":     func() pprofile.Profiles { return request("h", "s", long, samples, nil) },
		"very many attributes":   func() pprofile.Profiles { return request("h", "s", many, samples, nil) },
		"an id that leads away":  func() pprofile.Profiles { return request("h", "s", gate("../../etc"), samples, nil) },
		"an id of 2 MB":          func() pprofile.Profiles { return request("h", "s", gate(huge), samples, nil) },
		"no id":                  func() pprofile.Profiles { return request("h", "s", nil, samples, nil) },
		"the id of another host": func() pprofile.Profiles { return request("another", "s", gate("host"), samples, nil) },
		"a million entries": func() pprofile.Profiles {
			return request("h", "s", gate("entries"), samples, func(d pprofile.ProfilesDictionary, _ pprofile.Profile) {
				for i := range 1_000_000 {
					d.StringTable().Append(fmt.Sprint("f", i))
					d.FunctionTable().AppendEmpty().SetNameStrindex(int32(d.StringTable().Len() - 1))
				}
			})
		},
		"a name of 2 MB in each stack": func() pprofile.Profiles {
			return request("h", "s", gate("names"), samples, func(d pprofile.ProfilesDictionary, p pprofile.Profile) {
				d.StringTable().Append(huge)
				for i := range samples {
					f := d.FunctionTable().AppendEmpty()
					f.SetNameStrindex(int32(d.StringTable().Len() - 1))
					f.SetStartLine(int64(i))
					d.LocationTable().AppendEmpty().Lines().AppendEmpty().SetFunctionIndex(int32(d.FunctionTable().Len() - 1))
					d.StackTable().AppendEmpty().LocationIndices().Append(int32(d.LocationTable().Len() - 1))
					p.Samples().At(i).SetStackIndex(int32(d.StackTable().Len() - 1))
				}
			})
		},
		"a stack of a million frames": func() pprofile.Profiles {
			return request("h", "s", gate("frames"), samples, func(d pprofile.ProfilesDictionary, p pprofile.Profile) {
				d.StackTable().At(1).LocationIndices().FromRaw(slices.Repeat([]int32{1}, 1_000_000))
			})
		},
		"a thread for each sample": func() pprofile.Profiles {
			return request("h", "s", gate("threads"), samples, func(d pprofile.ProfilesDictionary, p pprofile.Profile) {
				d.StringTable().Append("thread.name")
				key := int32(d.StringTable().Len() - 1)
				for i := range samples {
					a := d.AttributeTable().AppendEmpty()
					a.SetKeyStrindex(key)
					a.Value().SetStr(fmt.Sprint("thread ", i))
					p.Samples().At(i).AttributeIndices().Append(int32(d.AttributeTable().Len() - 1))
				}
			})
		},
		"indices of nothing": func() pprofile.Profiles {
			return request("h", "s", gate("indices"), samples, func(_ pprofile.ProfilesDictionary, p pprofile.Profile) {
				p.AttributeIndices().Append(-1, 1<<30)
				for i, s := range p.Samples().All() {
					s.SetStackIndex(int32(i - 500))
				}
			})
		},
		"a moment for each value": func() pprofile.Profiles {
			return request("h", "s", gate("moments"), samples, func(d pprofile.ProfilesDictionary, p pprofile.Profile) {
				d.StringTable().Append("goroutines")
				p.SampleType().SetTypeStrindex(int32(d.StringTable().Len() - 1))
				for i, s := range p.Samples().All() {
					s.TimestampsUnixNano().Append(uint64(time.Now().UnixNano()) + uint64(i))
				}
			})
		},
	}
	sent := int64(0)
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		Profiles(to, requests[name]())
		sent += samples
	}
	require.NoError(t, to.Close())
	to, err = store.Open(store.Options{Directory: dir, MaxBytes: 16 << 20})
	require.NoError(t, err)
	defer func() { require.NoError(t, to.Close()) }()
	openings, err := to.Openings(t.Context(), store.OpeningQuery{All: true})
	require.NoError(t, err)
	kept := map[string]int64{}
	for _, o := range openings {
		texts := len(o.ID) + len(o.Unit.Host) + len(o.Unit.Name) + len(o.Policy) + len(o.Monitor) + len(o.Window)
		for k, v := range o.Unit.Resource {
			texts += len(k) + len(v)
		}
		require.Less(t, texts, 16<<10, o.ID)
		for _, i := range o.Profiles {
			kept[o.ID] += i.Samples
			p, err := to.Profile(t.Context(), o.ID, i.ProfileKey)
			require.NoError(t, err)
			require.NoError(t, p.CheckValid())
		}
	}
	for _, id := range []string{"service", "host", "long", "many", "entries", "frames", "threads"} {
		require.EqualValues(t, samples, kept[id], id)
	}
	require.EqualValues(t, 2, kept["indices"], "the empty stack 0, and stack 1")
	require.EqualValues(t, 128, kept["moments"])
	require.Less(t, to.Usage().Bytes, int64(16<<20))
	files := 0
	require.NoError(t, filepath.WalkDir(parent, func(path string, e fs.DirEntry, err error) error {
		require.NoError(t, err)
		require.NotContains(t, path, "script")
		rel, err := filepath.Rel(dir, path)
		require.NoError(t, err)
		if !e.IsDir() {
			files++
			require.False(t, strings.HasPrefix(rel, ".."), rel)
		}
		return nil
	}))
	require.Less(t, files, 400)
}
