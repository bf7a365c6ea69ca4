// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"

	"github.com/google/pprof/profile"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hotprofile/hotprofile/internal/boundedread"
	"github.com/hotprofile/hotprofile/internal/bytesize"
)

const (
	// maxSize is the maximum size of a profile in bytes, both as received and decompressed.
	maxSize = int64(16 * bytesize.MiB)
	// memoryFactor bounds the memory of a decoded profile, as a multiple of its maximum size.
	memoryFactor = 16
)

// decode decodes a profile that may be compressed. limit bounds the size of the profile,
// and memoryFactor times limit bounds its memory when decoded.
func decode(body []byte, limit int64) (*profile.Profile, error) {
	if len(body) >= 2 && body[0] == 0x1f && body[1] == 0x8b {
		z, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return nil, fmt.Errorf("decompress it: %w", err)
		}
		if body, err = boundedread.All(z, limit); err != nil {
			return nil, fmt.Errorf("decompress it: %w", err)
		}
	}
	if len(body) == 0 {
		return nil, errors.New("it is empty")
	}
	need, err := memory(body)
	if err != nil {
		return nil, err
	}
	if most := memoryFactor * limit; need > most {
		return nil, fmt.Errorf("%w: decoded it takes %d bytes, more than %d", boundedread.ErrTooLarge, need, most)
	}
	p, err := profile.ParseUncompressed(body)
	if err != nil {
		return nil, err
	}
	return p, p.CheckValid()
}

// These constants are the sizes in bytes of the parts of a decoded profile. Each size
// includes the pointers to the part.
const (
	messageMemory = 224 // a sample, location, function, mapping, value type
	labelMemory   = 448 // a label; in the worst case it has its own maps and slices
	lineMemory    = 48
	elementMemory = 32 // a location or value of a sample, with room for slices to grow
	stringMemory  = 40
)

var errMalformed = errors.New("it is no pprof profile: it is not a protocol buffers message")

// memory estimates the memory of a decoded profile without decoding the profile, because
// the decoded size can be thousands of times the encoded size.
func memory(b []byte) (need int64, err error) {
	err = fields(b, func(number int, content []byte) error {
		switch number {
		case fieldString:
			need += stringMemory + int64(len(content))
			return nil
		case fieldSample, fieldLocation:
			need += messageMemory
			return fields(content, func(inner int, part []byte) error {
				switch {
				case number == fieldSample && inner == fieldLabel:
					need += labelMemory
				case number == fieldSample:
					need += elementMemory * elements(part)
				default:
					need += lineMemory
				}
				return nil
			})
		}
		need += messageMemory
		return nil
	})
	return need, err
}

// These constants are the field numbers in pprof's profile.proto.
const (
	fieldSample   = 2
	fieldLocation = 4
	fieldString   = 6
	fieldLabel    = 3
)

// elements returns the number of values in a packed field. For an unpacked field, packed
// is nil, and the number is 1.
func elements(packed []byte) (n int64) {
	if packed == nil {
		return 1
	}
	for _, c := range packed {
		if c < 0x80 {
			n++
		}
	}
	return n
}

// fields calls f with each field of a message. content is nil if the field is a number.
func fields(b []byte, f func(number int, content []byte) error) error {
	for len(b) > 0 {
		number, kind, tag := protowire.ConsumeTag(b)
		if tag < 0 {
			return errMalformed
		}
		size := protowire.ConsumeFieldValue(number, kind, b[tag:])
		if size < 0 {
			return errMalformed
		}
		var content []byte
		if kind == protowire.BytesType {
			content, _ = protowire.ConsumeBytes(b[tag:])
		}
		if err := f(int(number), content); err != nil {
			return err
		}
		b = b[tag+size:]
	}
	return nil
}
