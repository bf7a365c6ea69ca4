// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package ring

// ClockSlack is the time in nanoseconds by which a record may lie after the
// start of the round and still be believed. A record with a later time would
// block its ring for ever, so it is read at once.
const ClockSlack = 1_000_000_000

// Heap orders rings by the time of their next record, the earliest first.
type Heap []Entry

// Entry is a ring that has a record left in the round.
type Entry struct {
	// Time is the time of the ring's next record, Index its index among the rings.
	Time  int64
	Index int
}

// Init orders entries that were appended.
func (h Heap) Init() {
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
}

// Update is called when the record of the first entry was read. time is that of
// the ring's next record; where it has none, more is false and the entry is
// removed.
func (h *Heap) Update(time int64, more bool) {
	if more {
		(*h)[0].Time = time
	} else {
		last := len(*h) - 1
		(*h)[0] = (*h)[last]
		*h = (*h)[:last]
	}
	h.down(0)
}

// down restores the order below entry i, whose time may have grown.
func (h Heap) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if right := child + 1; right < len(h) && h[right].Time < h[child].Time {
			child = right
		}
		if h[i].Time <= h[child].Time {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}
