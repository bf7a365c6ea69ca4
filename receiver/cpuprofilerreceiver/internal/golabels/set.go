// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package golabels

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/hotprofile/hotprofile/internal/samples"
)

const (
	// maxKey is the maximum length of a key in bytes, as in the configuration.
	// maxSet is the maximum number of labels of a goroutine. maxText is the
	// maximum length of a value in bytes.
	maxKey  = 255
	maxSet  = 32
	maxText = 255
	// setSize and labelSize are the sizes of internal/runtime/pprof/label.Set and Label.
	setSize   = 24
	labelSize = 32
	// maxAddress is above all addresses of user memory.
	maxAddress = 1 << 47
)

// labels contains the labels of a goroutine that are added to its samples.
type labels struct {
	// address is the address of the set. valid reports whether the set was read.
	address uint64
	valid   bool
	link    samples.Link
	// text is the value for samples.Key.Labels.
	text string
	// cut reports whether a value was too long and was truncated.
	cut bool
}

// memory reads the labels of goroutines from the memory of a process.
type memory struct {
	pid   int
	fetch func(pid int, address uint64, b []byte) int
	// keys are the keys of the labels that are added to samples.
	keys []string
	// list, key and text are buffers.
	list [maxSet * labelSize]byte
	key  [maxKey]byte
	text [maxText]byte
}

// fill fills b with the memory at an address.
func (m *memory) fill(address uint64, b []byte) bool {
	return address != 0 && address < maxAddress && m.fetch(m.pid, address, b) == len(b)
}

// labels reads the set of labels at an address.
func (m *memory) labels(at uint64) (l labels) {
	l.address = at
	if at == 0 {
		l.valid = true
		return l
	}
	set := m.list[:setSize]
	if !m.fill(at, set) {
		return l
	}
	le := binary.LittleEndian
	list, n, room := le.Uint64(set), le.Uint64(set[8:]), le.Uint64(set[16:])
	if n > maxSet || room < n {
		return l
	}
	set = m.list[:n*labelSize]
	if n > 0 && !m.fill(list, set) {
		return l
	}
	var trace, span string
	var text strings.Builder
	seen := uint64(0) // a bit for each of m.keys
	for ; len(set) > 0; set = set[labelSize:] {
		i := m.wanted(le.Uint64(set), le.Uint64(set[8:]))
		size := le.Uint64(set[24:])
		if i < 0 || size == 0 || seen&(1<<i) != 0 {
			continue
		}
		seen |= 1 << i
		b := m.text[:min(size, maxText)]
		if !m.fill(le.Uint64(set[16:]), b) {
			return l
		}
		switch value := string(b); m.keys[i] {
		case samples.LabelTraceID:
			trace = value
		case samples.LabelSpanID:
			span = value
		default:
			l.cut = l.cut || size > maxText
			text.WriteString(samples.Label(m.keys[i], value))
		}
	}
	l.valid, l.link, l.text = true, samples.ParseLink(trace, span), text.String()
	return l
}

// wanted reads the key at an address and returns the index of the key in m.keys. It
// returns -1 if the key is not in m.keys. If no key in m.keys has the given size,
// wanted does not read the key.
func (m *memory) wanted(at, size uint64) int {
	same := func(key string) bool { return uint64(len(key)) == size }
	if !slices.ContainsFunc(m.keys, same) || !m.fill(at, m.key[:size]) {
		return -1
	}
	return slices.Index(m.keys, string(m.key[:size]))
}
