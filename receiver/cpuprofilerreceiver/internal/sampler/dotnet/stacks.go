// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnet

import (
	"encoding/binary"
	"regexp"
	"strconv"
	"unsafe"

	"github.com/hotprofile/hotprofile/internal/nativeformat"
	"github.com/hotprofile/hotprofile/internal/samples"
)

// maxDepth is the maximum number of frames of a stack that are kept, counted from the leaf.
// A deeper stack is marked as truncated. Pyroscope would cut off the leaf instead.
const maxDepth = 1000

// maxStackBytes bounds the memory of known stacks. Above the bound, all stacks are
// forgotten and created again when they occur.
const maxStackBytes = 16 << 20

// nativeFrame is the profiler's name for all native code.
const nativeFrame = "Unknown_Native_Function(unknown)"

// stacks creates each stack of names only once, so that a known stack costs only a lookup.
type stacks struct {
	decoder *nativeformat.Decoder
	limit   int

	known map[string]*samples.Stack // by the names of the frames
	key   []byte                    // scratch
	// locations is indexed by name. It is valid as long as the decoder's names are valid.
	locations []*samples.Location
	forgotten uint64
	bytes     int
	resets    uint64
}

func newStacks(d *nativeformat.Decoder, limit int) *stacks {
	return &stacks{decoder: d, limit: limit, known: make(map[string]*samples.Stack)}
}

// begin is called before the first stack of a buffer.
func (s *stacks) begin() {
	if f := s.decoder.Forgotten(); f != s.forgotten {
		s.forgotten = f
		s.locations = nil // the names have new meanings
		s.forget()
	} else if s.bytes > s.limit {
		s.resets++
		s.forget()
	}
}

func (s *stacks) forget() {
	clear(s.known)
	s.bytes = 0
}

// of returns the stack with these frames. The first frame is the leaf.
func (s *stacks) of(frames []nativeformat.Name) *samples.Stack {
	truncated := len(frames) > maxDepth
	if truncated {
		frames = frames[:maxDepth]
	}
	s.key = s.key[:0]
	for _, f := range frames {
		s.key = binary.LittleEndian.AppendUint32(s.key, uint32(f))
	}
	if truncated {
		s.key = append(s.key, 1)
	}
	if known := s.known[string(s.key)]; known != nil {
		return known
	}
	stack := &samples.Stack{Locations: make([]*samples.Location, len(frames)), Truncated: truncated}
	for i, f := range frames {
		stack.Locations[i] = s.location(f)
	}
	s.known[string(s.key)] = stack
	s.bytes += int(unsafe.Sizeof(*stack)) + 32 + 8*len(frames) + len(s.key)
	return stack
}

func (s *stacks) location(n nativeformat.Name) *samples.Location {
	for int(n) >= len(s.locations) {
		s.locations = append(s.locations, nil)
	}
	if l := s.locations[n]; l != nil {
		return l
	}
	l := locationOf(s.decoder.Text(n))
	s.locations[n] = l
	return l
}

// locationOf returns the location of a frame by its name. The name is shown as received,
// because its argument types distinguish overloads. Backends that show only names would
// otherwise merge the overloads. A name with control characters could look like another
// text on a screen or in a log. Therefore, such a name is shown in a readable form, and
// the received name becomes the system name.
func locationOf(name string) *samples.Location {
	l := &samples.Location{Type: samples.FrameDotnet, Resolved: true, Lines: []samples.Line{{Function: name}}}
	if name == nativeFrame {
		l.Type = samples.FrameNative
	}
	if readable := readable(name); readable != name {
		l.Lines[0] = samples.Line{Function: readable, SystemName: name}
	}
	return l
}

// readable returns a name with its control characters escaped in Go syntax.
func readable(name string) string {
	if name == "" {
		return "(no name)"
	}
	return controls.ReplaceAllStringFunc(name, func(c string) string {
		quoted := strconv.Quote(c)
		return quoted[1 : len(quoted)-1]
	})
}

// controls matches control characters.
var controls = regexp.MustCompile(`\p{Cc}`)
