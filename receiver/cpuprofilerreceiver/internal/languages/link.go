// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package languages

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/hotprofile/hotprofile/internal/samples"
)

const (
	// prompt is the maximum age of a sample, in nanoseconds, at which the span that is
	// read counts as the active span of the sample.
	prompt = int64(300 * time.Microsecond)
	// The record of a thread, whose format is described in OTEP 4947, contains the ids of
	// its trace and of its span. The byte at recordValid is 1 if these ids are valid.
	// recordLength is the offset of the length of the attributes in bytes. The attributes
	// follow the record.
	recordValid   = 24
	recordLength  = 26
	recordSize    = 28
	maxAttributes = 612
	maxLabels     = 512 // bytes of the labels of a sample
	// dtvEntry is the size of one entry in a thread's vector of modules. dtvAt is the
	// offset from the thread pointer at which the address of the vector is stored.
	dtvEntry = 16
	dtvAt    = 8
)

// Span is the active span of a thread.
type Span struct {
	samples.Link
	// Labels contains the wanted attributes of the thread, in the form of
	// samples.Key.Labels.
	Labels string
}

// readLink reads the active span of a thread. The thread continued after the sample.
// Therefore, the span counts only if it was read at once, or if the last read before the
// sample found the same span.
func (w *walk) readLink(p *process, t *thread) {
	before, at := t.link, t.linked
	w.unlinked = true
	slot, ok := w.contextSlot(p.context, t)
	record, span := w.readRecord(p, slot)
	if again, same := w.readRecord(p, slot); !ok || again != record || same != span {
		t.linked = 0 // the thread is changing its span
		return
	}
	t.link, t.linked = span.Link, w.now
	switch {
	case w.now-w.sampled <= prompt, at != 0 && at <= w.sampled && before == span.Link:
		w.span, w.unlinked = span, false
	case !span.Valid() && !before.Valid():
		w.unlinked = false // the thread seldom has a span
	}
}

// contextSlot returns the address of a thread's variable, which contains the address of
// the thread's record. The TLS descriptor of the variable contains the negative offset of
// the variable from the thread pointer. If the module was loaded after the program
// started, the descriptor contains the address of a structure instead. The structure
// contains the module's number and the variable's offset in the module's block.
func (w *walk) contextSlot(descriptor uint64, t *thread) (uint64, bool) {
	argument, ok := w.memory.word(descriptor + word)
	if !ok || int64(argument) < 0 {
		return t.pointer + argument, ok
	}
	module, ok1 := w.memory.word(argument)
	offset, ok2 := w.memory.word(argument + word)
	vector, ok3 := w.memory.word(t.pointer + dtvAt)
	block, ok4 := w.memory.word(vector + module*dtvEntry)
	const unallocated = ^uint64(0)
	return block + offset, ok1 && ok2 && ok3 && ok4 && block != unallocated
}

// readRecord reads a thread's record from the memory of the process. It returns the address
// of the record and the active span.
func (w *walk) readRecord(p *process, slot uint64) (record uint64, span Span) {
	w.memory.again(slot)
	record, _ = w.memory.word(slot)
	if record == 0 {
		return 0, span
	}
	w.memory.again(record)
	w.memory.again(record + recordSize + maxAttributes)
	b := w.memory.bytes(record, recordSize)
	if b == nil || b[recordValid] != 1 {
		return record, span
	}
	copy(span.TraceID[:], b)
	copy(span.SpanID[:], b[len(span.TraceID):])
	if n := int(binary.LittleEndian.Uint16(b[recordLength:])); n > 0 && n <= maxAttributes && p.published != nil {
		span.Labels = w.labelsIn(p.published.Keys, w.memory.bytes(record+recordSize, n))
	}
	return record, span
}

// labelsIn returns the wanted attributes of a record. An attribute consists of the number of
// its key, the length of its value, and its value.
func (w *walk) labelsIn(keys []int, attributes []byte) (labels string) {
	seen := 0 // a bit for each of keys
	for len(attributes) >= 2 {
		number, value := int(attributes[0]), attributes[2:]
		n := int(attributes[1])
		if n > len(value) {
			break
		}
		if i := slices.Index(keys, number); i >= 0 && n > 0 && seen&(1<<i) == 0 && len(labels)+n+len(w.labels[i]) < maxLabels {
			seen |= 1 << i
			labels += samples.Label(w.labels[i], string(value[:n]))
		}
		attributes = value[n:]
	}
	return labels
}
