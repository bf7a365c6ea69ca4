// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package openfile

import (
	"container/list"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkAboveTheBound reads 1,000 files in turn, although fewer files may be open. It
// compares Set with a cache that closes the least recently used file.
func BenchmarkAboveTheBound(b *testing.B) {
	const n = 1000
	dir := b.TempDir()
	paths := make([]string, n)
	for i := range paths {
		paths[i] = filepath.Join(dir, fmt.Sprint(i))
		require.NoError(b, os.WriteFile(paths[i], []byte("usage_usec 1\n"), 0o644))
	}
	buf := make([]byte, 64)
	for _, bound := range []int{1000, 990, 900, 500, 0} {
		for _, policy := range []string{"Set", "LRU"} {
			b.Run(fmt.Sprintf("%d/%s", bound, policy), func(b *testing.B) {
				s := NewSet(max(bound, 1))
				if policy == "Set" {
					s = NewSet(bound)
				}
				files := make([]File, n)
				at := make([]*list.Element, n)
				used := list.New() // most recently used first
				for i := range files {
					files[i] = s.File(paths[i])
				}
				read := func(i int) {
					if policy == "LRU" && at[i] == nil {
						if used.Len() >= max(bound, 1) {
							last := used.Back()
							j := used.Remove(last).(int)
							files[j].Close()
							at[j] = nil
						}
						at[i] = used.PushFront(i)
					} else if policy == "LRU" {
						used.MoveToFront(at[i])
					}
					if _, _, err := files[i].Read(buf); err != nil {
						b.Fatal(err)
					}
				}
				for b.Loop() {
					for i := range files {
						read(i)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/file")
				for i := range files {
					files[i].Close()
				}
			})
		}
	}
}
