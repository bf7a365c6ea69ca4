// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnet

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/procfs"
	"github.com/hotprofile/hotprofile/internal/samples"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver/internal/processes"
)

func raw(attributes []samples.Attribute) map[string]any {
	m := map[string]any{}
	for _, a := range attributes {
		m[a.Key] = a.Value
	}
	return m
}

func TestResourceIsReadAsSDKsWriteIt(t *testing.T) {
	for name, tc := range map[string]struct {
		header string
		want   map[string]any
	}{
		"nothing":                     {"", map[string]any{}},
		"pairs":                       {"service.name=checkout,telemetry.sdk.language=dotnet", map[string]any{"service.name": "checkout", "telemetry.sdk.language": "dotnet"}},
		"spaces":                      {" service.name = checkout , a=b ", map[string]any{"service.name": "checkout", "a": "b"}},
		"percent-encoded":             {"service.name=a%2Cb%3Dc%20%C3%A9", map[string]any{"service.name": "a,b=c é"}},
		"a plus is a plus":            {"service.version=1.0+build", map[string]any{"service.version": "1.0+build"}},
		"equals in the value":         {"a=b=c", map[string]any{"a": "b=c"}},
		"no equals, no key":           {"nothing,=x,a=b", map[string]any{"a": "b"}},
		"an empty value":              {"a=", map[string]any{"a": ""}},
		"the last counts":             {"a=1,a=2", map[string]any{"a": "2"}},
		"badly encoded":               {"a=100%,b=%zz", map[string]any{"a": "100%", "b": "%zz"}},
		"not UTF-8":                   {"a=%ff,b=\xfe", map[string]any{"a": "\uFFFD", "b": "\uFFFD"}},
		"a key of control codes":      {"a%00b=c,d%0a=e,f=g", map[string]any{"f": "g"}},
		"an encoded key":              {"service%2Ename=x", map[string]any{"service.name": "x"}},
		"only commas":                 {",,,,", map[string]any{}},
		"a key that is much too long": {strings.Repeat("k", maxKey+1) + "=v,a=b", map[string]any{"a": "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := parseAttributes(tc.header)
			require.Equal(t, tc.want, raw(got))
		})
	}
}

func TestResourceIsBoundedAndWhatIsCutIsCounted(t *testing.T) {
	var pairs []string
	for i := range 3 * maxAttributes {
		pairs = append(pairs, fmt.Sprintf("key.%d=v", i))
	}
	got, bounded := parseAttributes(strings.Join(pairs, ","))
	require.Len(t, got, maxAttributes)
	require.Equal(t, 2*maxAttributes, bounded)

	got, bounded = parseAttributes("a=" + strings.Repeat("é", maxValue))
	require.Equal(t, strings.Repeat("é", maxValue/2), got[0].Value)
	require.Equal(t, 1, bounded)

	got, _ = parseAttributes("a=x" + strings.Repeat("é", maxValue))
	require.Len(t, got[0].Value, maxValue-1, "cut between characters")
}

// claims are resource attributes that a sender may use to pose as another service.
const claims = "service.name=checkout,container.id=" + someoneElses + ",process.pid=1,process.parent_pid=1,process.creation.time=2026-01-01T00:00:00Z," +
	"process.linux.cgroup=/else,host.name=else,host.id=else,host.arch=amd64,k8s.pod.uid=else,k8s.pod.name=web-1,hotprofile.trigger.policy=cpu,telemetry.sdk.name=opentelemetry"

const someoneElses = "4f1c0c6b8a2e4f1c0c6b8a2e4f1c0c6b8a2e4f1c0c6b8a2e4f1c0c6b8a2e4f1c"

func TestOverTCPOnlyAContainersIDIsTrusted(t *testing.T) {
	r, _ := resourceOf(claims, nil, host{"here", "id"})
	require.Zero(t, r.PID)
	require.Equal(t, map[string]any{
		"service.name": "checkout", "container.id": someoneElses, "k8s.pod.uid": "else", "k8s.pod.name": "web-1", "telemetry.sdk.name": "opentelemetry",
	}, raw(r.Attributes))
}

func TestOverAUnixSocketTheKernelDecides(t *testing.T) {
	started := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	t.Run("in a container", func(t *testing.T) {
		r, _ := resourceOf(claims, &processes.Identity{Process: procfs.Process{PID: 77, Start: 5}, Started: started, Cgroup: "/docker/its", ContainerID: "its", PodUID: "pod"}, host{"here", "id"})
		require.Equal(t, 77, r.PID)
		require.Equal(t, map[string]any{
			"service.name": "checkout", "container.id": "its", "k8s.pod.uid": "pod", "k8s.pod.name": "web-1", "telemetry.sdk.name": "opentelemetry",
			"process.pid": int64(77), "process.creation.time": "2026-01-02T03:04:05Z", "process.linux.cgroup": "/docker/its", "host.name": "here", "host.id": "id",
		}, raw(r.Attributes))
		require.True(t, slices.IsSortedFunc(r.Attributes, func(a, b samples.Attribute) int { return strings.Compare(a.Key, b.Key) }))
	})
	t.Run("outside of any", func(t *testing.T) {
		r, _ := resourceOf(claims, &processes.Identity{Process: procfs.Process{PID: 77, Start: 5}, Started: started, Cgroup: "/system.slice/its.service"}, host{"here", ""})
		got := raw(r.Attributes)
		require.NotContains(t, got, "container.id")
		require.NotContains(t, got, "k8s.pod.uid")
		require.Equal(t, "/system.slice/its.service", got["process.linux.cgroup"])
	})
}

func TestAServiceWithoutANameIsUnknown(t *testing.T) {
	for _, header := range []string{"", "service.name=", "service.namespace=shop"} {
		r, _ := resourceOf(header, nil, host{})
		require.Equal(t, "unknown_service:dotnet", raw(r.Attributes)["service.name"], header)
	}
}

func FuzzResource(f *testing.F) {
	for _, seed := range []string{
		"", claims, "service.name=a%2Cb,%,%%%=%,a=%f", strings.Repeat("a=b,", 500), "a=\x00\xff,\xff=b", strings.Repeat("%C3%A9", 600) + "=x",
		"process%2Epid=1", " host.name=x", "process.pid%20=1", "HOST.NAME=x",
	} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, header string, unix bool) {
		var who *processes.Identity
		if unix {
			who = &processes.Identity{Process: procfs.Process{PID: 77, Start: 5}, Cgroup: "/its"}
		}
		r, bounded := resourceOf(header, who, host{"here", "id"})
		if bounded < 0 || len(r.Attributes) > maxAttributes+8 {
			t.Fatalf("%d attributes, %d bounded", len(r.Attributes), bounded)
		}
		last := ""
		for _, a := range r.Attributes {
			if a.Key <= last || len(a.Key) > maxKey || !utf8.ValidString(a.Key) {
				t.Fatalf("key %q after %q", a.Key, last)
			}
			last = a.Key
			v, ok := a.Value.(string)
			if ok && (len(v) > maxValue || !utf8.ValidString(v)) {
				t.Fatalf("%s: %d bytes", a.Key, len(v))
			}
			if claimed(a.Key) && !unix {
				t.Fatalf("%s=%v over TCP", a.Key, a.Value)
			}
		}
		got := raw(r.Attributes)
		if name, _ := got["service.name"].(string); name == "" {
			t.Fatal("no service.name")
		}
		if unix && (got["process.pid"] != int64(77) || got["process.linux.cgroup"] != "/its" || got["host.name"] != "here" || got["container.id"] != nil) {
			t.Fatalf("%v", got)
		}
	})
}
