// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import (
	"testing"

	"github.com/hotprofile/hotprofile/internal/perfevent/internal/record"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/ring"
	"github.com/hotprofile/hotprofile/internal/perfevent/internal/sys"
	"github.com/hotprofile/hotprofile/test/perftest"
)

// BenchmarkSessionRead is like BenchmarkReadSample of internal/record. It also
// includes the lock, reading the clock once per round, and the lookup of the
// attachment among 4096 events.
func BenchmarkSessionRead(b *testing.B) {
	words := perftest.Sample(sys.MiscKernel, 1, perftest.DeepStack()...)
	rings := []*perftest.Ring[ring.Ring]{perftest.NewRing(ring.New, 1<<14, 0)}
	for rings[0].Write(words) {
	}
	s := &Session{
		attributes: attributes{features: features{inheritThread: true}},
		reader:     record.NewReader(perftest.Readers(rings), record.Decoder{MaxStack: sys.MaxStackDepth}, sys.Monotonic),
	}
	events := make(map[uint64]*event)
	for id := range uint64(4096) {
		events[id] = &event{id: id, attachment: &Attachment{pid: 7}}
	}
	s.events.Store(&events)
	b.Run("copy", func(b *testing.B) {
		scratch := make([]uint64, len(words))
		b.ReportAllocs()
		for b.Loop() {
			copy(scratch, words)
		}
	})
	b.Run("read", func(b *testing.B) {
		var rec Record
		b.ReportAllocs()
		for b.Loop() {
			if !s.Read(&rec) {
				rings[0].Rewind()
				s.Read(&rec)
			}
		}
		if rec.Attachment == nil {
			b.Fatal("no attachment")
		}
	})
}
