// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package dotnet

import (
	"errors"
	"io"
	"sync"

	"golang.org/x/sync/semaphore"
)

// smallBody is the number of bytes that each request may read without a reservation. Most
// buffers are smaller.
const smallBody = 64 << 10

// maxBodies bounds the memory for larger bodies of all requests together, in bytes.
const maxBodies = 64 << 20

// errNoMemory is returned when maxBodies is reached.
var errNoMemory = errors.New("too many large bodies are being read")

// memory bounds the memory for reading bodies. The memory of a request grows with the
// bytes that have arrived, not with the announced length. Stalled senders therefore need
// little memory, and do not block other senders.
type memory struct {
	left  *semaphore.Weighted // remaining bytes
	small sync.Pool           // of *[]byte with a capacity of at most smallBody
}

// body contains the bytes of one body.
type body struct {
	memory *memory
	small  *[]byte
	bytes  []byte
	taken  int64
}

func (m *memory) body() *body {
	small, ok := m.small.Get().(*[]byte)
	if !ok {
		made := make([]byte, 0, 16<<10)
		small = &made
	}
	return &body{memory: m, small: small, bytes: (*small)[:0]}
}

// read reads from until its end. The memory grows with the received bytes, not with the
// length that the sender announces.
func (b *body) read(from io.Reader) error {
	for {
		if len(b.bytes) == cap(b.bytes) {
			if err := b.grow(2 * cap(b.bytes)); err != nil {
				return err
			}
		}
		n, err := from.Read(b.bytes[len(b.bytes):cap(b.bytes)])
		b.bytes = b.bytes[:len(b.bytes)+n]
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (b *body) grow(size int) error {
	if size > smallBody {
		more := int64(size-smallBody) - b.taken
		if !b.memory.left.TryAcquire(more) {
			return errNoMemory
		}
		b.taken += more
	}
	b.bytes = append(make([]byte, 0, size), b.bytes...)
	if size <= smallBody {
		*b.small = b.bytes
	}
	return nil
}

func (b *body) free() {
	b.memory.left.Release(b.taken)
	b.memory.small.Put(b.small)
	*b = body{}
}
