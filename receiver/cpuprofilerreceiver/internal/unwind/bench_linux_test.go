// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package unwind

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/perfevent"
)

// BenchmarkUnwind unwinds real samples. For comparison, it also follows the
// frame pointers in the same copies.
func BenchmarkUnwind(b *testing.B) {
	for name, start := range map[string]func(b *testing.B) int{
		"c": func(b *testing.B) int {
			return run(b, compile(b, "gcc", "-O2", "testdata/calls.c", "-lm", "-lpthread"))
		},
		"go":     func(b *testing.B) int { return run(b, compile(b, "go", "../../../../test/testdata/spinner")) },
		"python": func(b *testing.B) int { return run(b, "/usr/bin/python3", "testdata/loop.py") },
	} {
		b.Run(name, func(b *testing.B) {
			pid := start(b)
			stacks := sample(b, pid, 500, stackBytes)
			m := memoryOf(b, pid)
			cache := newTestCache(b)
			ready(b, cache, m)
			u := newUnwinder(cache)
			b.Run("by=tables", func(b *testing.B) {
				b.ReportAllocs()
				frames, i := 0, 0
				for b.Loop() {
					pcs, _ := u.Unwind(&stacks[i%len(stacks)].Sample, nil, m)
					frames += len(pcs)
					i++
				}
				report(b, frames)
			})
			b.Run("by=frame_pointers", func(b *testing.B) {
				b.ReportAllocs()
				frames, i := 0, 0
				for b.Loop() {
					frames += byFramePointers(&stacks[i%len(stacks)].Sample)
					i++
				}
				report(b, frames)
			})
			// The kernel makes such a copy for each sample that is unwound with tables.
			b.Run("by=copying_16KiB", func(b *testing.B) {
				b.ReportAllocs()
				to := make([]byte, stackBytes)
				i := 0
				for b.Loop() {
					copy(to, stacks[i%len(stacks)].Stack)
					i++
				}
			})
		})
	}
}

func report(b *testing.B, frames int) {
	b.ReportMetric(float64(frames)/float64(b.N), "frames/op")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(max(frames, 1)), "ns/frame")
}

// byFramePointers follows the frame pointers in a copy, in the same way as the kernel.
// It returns the number of frames.
func byFramePointers(in *perfevent.Sample) int {
	w := walk{pc: in.Registers.PC, sp: in.Registers.SP, fp: in.Registers.FP, fpKnown: true, start: in.Registers.SP, copy: in.Stack}
	n := 1
	for n < MaxDepth && w.byFramePointer() == Whole {
		n++
	}
	return n
}

// BenchmarkNewTable builds the table of a file. For comparison, it
// also measures reading the file.
func BenchmarkNewTable(b *testing.B) {
	for name, path := range map[string]string{
		"libc": "/lib/x86_64-linux-gnu/libc.so.6", "libcrypto": "/lib/x86_64-linux-gnu/libcrypto.so.3", "python": "/usr/bin/python3",
		"go": "", "node": "/usr/bin/node",
	} {
		b.Run(name, func(b *testing.B) {
			if name == "go" {
				path = compile(b, "go", "../../../../test/testdata/spinner")
			}
			f, err := os.Open(path)
			if err != nil {
				b.Skip(err)
			}
			defer f.Close()
			info, err := f.Stat()
			require.NoError(b, err)
			b.Run("table", func(b *testing.B) {
				var table *Table
				for b.Loop() {
					table, err = readTable(f, info.Size(), defaultMaxBytes/4, maxFrames)
					require.NoError(b, err)
				}
				b.ReportMetric(float64(table.Bytes()), "table-bytes")
				b.ReportMetric(float64(len(table.pcs)), "rows")
				b.ReportMetric(float64(info.Size()), "file-bytes")
			})
			b.Run("baseline=read", func(b *testing.B) {
				buf := make([]byte, info.Size())
				for b.Loop() {
					_, err := f.ReadAt(buf, 0)
					require.NoError(b, err)
				}
			})
		})
	}
}
