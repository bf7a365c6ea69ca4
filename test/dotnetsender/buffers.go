// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/hotprofile/hotprofile/internal/nativeformat"
	"github.com/hotprofile/hotprofile/test/nativeformattest"
)

// buffer is a buffer that is sent repeatedly.
type buffer struct {
	format nativeformat.Format
	bytes  []byte
	// times holds the byte offset of each time in the buffer. newest is the latest of these
	// times.
	times  []int
	newest int64
	// samples is the number of complete samples in the buffer.
	samples int
}

// newBuffer finds the times in a buffer. Bytes after a fault are sent unchanged.
func newBuffer(format nativeformat.Format, bytes []byte) *buffer {
	b := &buffer{format: format, bytes: bytes}
	d := nativeformat.NewDecoder(0)
	if format.Kind == nativeformat.ThreadSamples {
		_, err := d.Decode(format, bytes, nil)
		if frequent := (nativeformat.Format{Kind: format.Kind, FrequentSampling: true}); err != nil {
			if _, err := d.Decode(frequent, bytes, nil); err == nil {
				b.format = frequent
			}
		}
	}
	sum, _ := d.Decode(b.format, bytes, func(s *nativeformat.Sample) {
		at := s.Offset + 1
		if format.Kind == nativeformat.ThreadSamples {
			at = batchTime
		}
		if len(b.times) == 0 || b.times[len(b.times)-1] != at {
			b.times = append(b.times, at)
		}
		b.newest = max(b.newest, s.UnixMilli)
	})
	b.samples = sum.Samples
	return b
}

// batchTime is the offset of the time in a buffer of thread samples. Such a buffer has
// one batch, and the time follows the batch's opcode and version.
const batchTime = 1 + 4

// at appends the buffer to a slice and moves all times, so that the newest time becomes
// now. now is in milliseconds since the Unix epoch.
func (b *buffer) at(to []byte, now int64) []byte {
	begin := len(to)
	to = append(to, b.bytes...)
	for _, at := range b.times {
		field := to[begin+at:][:8]
		binary.BigEndian.PutUint64(field, uint64(int64(binary.BigEndian.Uint64(field))-b.newest+now))
	}
	return to
}

// readBuffers reads files named NAME.KIND.bin in order. It also
// reads all such files in folders.
func readBuffers(paths []string) (all []*buffer, err error) {
	for _, path := range paths {
		err := filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(file, ".bin") {
				return err
			}
			kind, ok := map[string]nativeformat.Kind{
				".threads": nativeformat.ThreadSamples, ".allocations": nativeformat.AllocationSamples, ".selected": nativeformat.SelectedThreadSamples,
			}[filepath.Ext(strings.TrimSuffix(file, ".bin"))]
			if !ok {
				return fmt.Errorf("%s is named neither .threads.bin, .allocations.bin nor .selected.bin", file)
			}
			bytes, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			all = append(all, newBuffer(nativeformat.Format{Kind: kind}, bytes))
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read buffers: %w", err)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no file NAME.KIND.bin in %s", strings.Join(paths, ", "))
	}
	return all, nil
}

// madeBuffers holds the size of generated buffers.
type madeBuffers struct{ threads, depth int }

// buffers generates one buffer of each kind. Half of the thread samples belong to
// waiting threads, and half belong to running threads. The stacks of the threads share
// their root frames, like the stacks of a service.
func (m madeBuffers) buffers() ([]*buffer, error) {
	if m.threads < 1 || m.depth < 1 {
		return nil, fmt.Errorf("make buffers of %d threads with %d frames: both have to be at least 1", m.threads, m.depth)
	}
	record := func(thread int) *nativeformattest.Record {
		r := &nativeformattest.Record{
			UnixMilli: int64(thread), // the order matters; all times are moved to now
			Thread:    fmt.Sprintf(".NET Worker %d", thread),
			Type:      "System.Byte[]",
			Bytes:     4096,
		}
		leaf := "System.Threading.Thread.Sleep(System.Int32)"
		if thread%2 == 0 {
			leaf = "Sender.Made.Work.Run()"
			r.TraceID, r.SpanID = [16]byte{15: byte(thread + 1)}, [8]byte{7: byte(thread + 1)}
		}
		r.Frames = append(r.Frames, leaf)
		for depth := 1; depth < m.depth; depth++ {
			r.Frames = append(r.Frames, fmt.Sprintf("Sender.Made.Layer%d.Call(System.Object, System.Threading.CancellationToken)", m.depth-depth))
		}
		return r
	}
	var all []*buffer
	for _, kind := range []nativeformat.Kind{nativeformat.ThreadSamples, nativeformat.AllocationSamples, nativeformat.SelectedThreadSamples} {
		e := nativeformattest.NewEncoder(nativeformat.Format{Kind: kind})
		e.StartBatch(0)
		frames := 0
		for thread := range m.threads {
			r := record(thread)
			frames += len(r.Frames)
			e.Sample(r)
		}
		e.EndBatch()
		e.Statistics(nativeformattest.Statistics{SuspendedMicroseconds: 150, Threads: int32(m.threads), Frames: int32(frames)})
		all = append(all, newBuffer(nativeformat.Format{Kind: kind}, e.Bytes()))
	}
	return all, nil
}
