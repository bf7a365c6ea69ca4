// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package dotnettest provides buffers that were recorded from .NET services, and the
// expected contents of these buffers. Tests use the buffers as input.
package dotnettest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hotprofile/hotprofile/internal/nativeformat"
)

// Capture is a recorded buffer and its expected contents.
type Capture struct {
	Name   string // such as web/000.threads
	Bytes  []byte
	Format nativeformat.Format
	// Truncated is true if the buffer ends inside a sample.
	Truncated bool `json:"truncated"`
	Kind      string
	Selected  bool     `json:"selected_flag"`
	Functions []string `json:"functions"`
	Samples   []Sample `json:"samples"`
}

// Sample is one sample of a capture. Frames are indices into the capture's functions.
type Sample struct {
	UnixMilli int64  `json:"unix_ms"`
	Thread    string `json:"thread"`
	Selected  bool   `json:"selected"`
	TraceID   string `json:"trace_id"`
	SpanID    string `json:"span_id"`
	Type      string `json:"type"`
	Bytes     int64  `json:"bytes"`
	Frames    []int  `json:"frames"`
}

// Path returns the path, with its query, to which the buffer is posted.
func (c *Capture) Path() string {
	switch c.Format.Kind {
	case nativeformat.AllocationSamples:
		return "/v1/dotnet/allocation-samples"
	case nativeformat.SelectedThreadSamples:
		return "/v1/dotnet/selected-thread-samples?interval=50"
	}
	if c.Format.FrequentSampling {
		return "/v1/dotnet/thread-samples?interval=500&frequent_sampling=true"
	}
	return "/v1/dotnet/thread-samples?interval=500"
}

// Read reads the captures that match a glob pattern such as web/*.
func Read(t testing.TB, glob string) (all []Capture) {
	t.Helper()
	folder := filepath.Join(repository(t), "testdata/dotnet")
	files, err := filepath.Glob(filepath.Join(folder, glob+".bin"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures %s in %s: %v", glob, folder, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(file, ".bin")
		c := Capture{Name: filepath.ToSlash(strings.TrimPrefix(name, folder+"/"))}
		if c.Bytes, err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(content, &c); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c.Format = nativeformat.Format{
			Kind: map[string]nativeformat.Kind{
				"threads": nativeformat.ThreadSamples, "allocations": nativeformat.AllocationSamples, "selected": nativeformat.SelectedThreadSamples,
			}[c.Kind],
			FrequentSampling: c.Selected,
		}
		all = append(all, c)
	}
	return all
}

// repository returns the folder of go.mod. It searches upwards from the package's folder, in
// which tests run, because runtime.Caller does not return full paths with -trimpath.
func repository(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatal("no go.mod in or above the folder of the test")
	return ""
}
