// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package perfevent

import "testing"

// Read adds to BenchmarkReadSample's rings the lock, the clock once a round and
// the attachment by the event's id, of 4096 events.
func BenchmarkSessionRead(b *testing.B) {
	words := sampleWords(miscKernel, 1, deepStack()...)
	fake := newFakeRing(1<<14, 0)
	for fake.write(words) {
		fake.kernelTail = 0
	}
	full := fake.kernelHead
	s := &Session{
		recordRings: recordRings{merger: newMerger([]*ring{&fake.ring}), decoder: decoder{maxStack: maxStackDepth}},
		features:    features{inheritThread: true},
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
				fake.next, fake.published, fake.kernelHead = 0, 0, full // the same records once more
				s.Read(&rec)
			}
		}
		if rec.Attachment == nil {
			b.Fatal("no attachment")
		}
	})
}
