// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/hotprofile/hotprofile/internal/procfs"
)

// processContext is the state of an OpenTelemetry process context. An SDK publishes its
// resource attributes in such a context, which consists of a header and a protobuf
// message in the memory of the process. OTEP 4719 describes the format. The attributes
// cannot be verified, just like the environment of a process.
type processContext struct {
	// address is the address of the header. It is 0 if no context was found. published is
	// the publication time in the header. Each update changes this time.
	address, published uint64
	// next is the time of the next search. wait is the time between the next search and
	// the following search. It is 0 before the first sample.
	next time.Time
	wait time.Duration
	// described contains the attributes in the context.
	described environment
	threads   *ThreadContext
}

const (
	// contextDelay is the time from the first sample of a process to the search for its
	// context. An SDK publishes the context when it starts. The time between two searches
	// doubles up to maxContextWait, because a search reads all mappings of the process.
	contextDelay   = 2 * time.Second
	maxContextWait = 64 * time.Second
	// maxContexts is the maximum number of mappings of a process
	// that are checked for a context.
	maxContexts = 4
	// contextHeader is the size of the header in bytes. maxContext is the
	// maximum size of the message in bytes.
	contextHeader    = 32
	maxContext       = 64 << 10
	contextSignature = "OTEL_CTX"
	contextVersion   = 2
	// threadSchemaKey is the key of the attribute that describes how threads publish their
	// active span. threadSchema is the only supported value. threadKeysKey is the key of the
	// attribute that lists the keys of the attributes that threads publish.
	threadSchemaKey = "threadlocal.schema_version"
	threadSchema    = "tlsdesc_v1_dev"
	threadKeysKey   = "threadlocal.attribute_key_map"
)

// ThreadContext describes the active span that each thread of a process publishes.
type ThreadContext struct {
	// Keys contains, for each key in Config.Labels, the number of this key in the records of
	// threads. The number is negative if the threads do not publish the attribute.
	Keys []int
}

// ThreadContext describes the active spans that the threads of the process publish. It
// returns nil if the threads do not publish spans.
func (p *Process) ThreadContext() *ThreadContext { return p.context.threads }

var (
	errNoContext = errors.New("no process context")
	// errChanging means that the context was updated while it was read.
	errChanging = errors.New("the process context is changing")
)

// readContext reads the context of a process again if the context has changed. If no
// context is known, readContext searches for it when the next search is due.
func (t *Table) readContext(p *Process) {
	c := &p.context
	if c.address != 0 && !t.contextAt(p, c.address) {
		c.address = 0
	}
	if c.address != 0 {
		return
	}
	now := t.cfg.Now()
	switch {
	case c.wait == 0:
		c.next, c.wait = now.Add(contextDelay), contextDelay
	case !now.Before(c.next):
		c.next, c.wait = now.Add(c.wait), min(2*c.wait, maxContextWait)
		t.searchContext(p)
	}
}

// searchContext searches the mappings of a process for its context, and reads the context.
func (t *Table) searchContext(p *Process) {
	maps, err := t.maps(p)
	if err != nil {
		return
	}
	for _, address := range contextMappings(maps) {
		if t.contextAt(p, address) {
			p.context.address = address
			return
		}
	}
}

// contextMappings returns the addresses of the mappings that may contain a context. The
// name of such a mapping depends on the system calls that the publisher may use.
func contextMappings(maps []byte) (addresses []uint64) {
	if !bytes.Contains(maps, []byte(contextSignature)) {
		return nil
	}
	for line := range bytes.Lines(maps) {
		m, ok := procfs.ParseMapping(line)
		if !ok {
			continue
		}
		switch string(m.Path) {
		case "[anon_shmem:OTEL_CTX]", "[anon:OTEL_CTX]", "/memfd:OTEL_CTX", "/memfd:OTEL_CTX (deleted)":
			if addresses = append(addresses, m.Start); len(addresses) == maxContexts {
				return addresses
			}
		}
	}
	return addresses
}

// contextAt reads the context whose header is at an address. If there is no context, or
// if the memory cannot be read, contextAt drops the known attributes and returns false.
func (t *Table) contextAt(p *Process, address uint64) bool {
	c := &p.context
	fs, pid, known := t.fs.FS, p.PID, c.published // a late read must not use p
	b, err := t.fs.within(pid, p.facts.raw, t.fs.File(pid, "mem"), func(buf []byte) ([]byte, error) {
		content, err := appendContext(buf, fs, pid, address, known)
		if errors.Is(err, errChanging) {
			content, err = appendContext(content, fs, pid, address, known)
		}
		return content, err
	})
	if errors.Is(err, errChanging) || isLate(err) {
		return true // the context is read again in the next batch
	}
	var described environment
	published := uint64(0)
	if err != nil {
		c.threads = nil
	} else {
		if published = binary.NativeEndian.Uint64(b[16:]); published == c.published {
			return true
		}
		described, c.threads = parseContext(b[contextHeader:], t.cfg.Labels)
	}
	c.published = published
	if described != c.described {
		c.described, p.Resource = described, nil
		t.weigh(p)
	}
	return err == nil
}

// appendContext reads the header of a context into the memory of buf. If the publication
// time differs from known, the result also contains the message. appendContext reads the
// header again after the message, to detect an update in between.
func appendContext(buf []byte, fs procfs.FS, pid int, address, known uint64) ([]byte, error) {
	buf = slices.Grow(buf[:0], contextHeader)[:contextHeader]
	if err := fs.ReadMemory(pid, buf, address); err != nil {
		return buf, err
	}
	version, size := binary.NativeEndian.Uint32(buf[8:]), binary.NativeEndian.Uint32(buf[12:])
	published, message := binary.NativeEndian.Uint64(buf[16:]), binary.NativeEndian.Uint64(buf[24:])
	switch {
	case !bytes.HasPrefix(buf, []byte(contextSignature)), version != contextVersion:
		return buf, errNoContext
	case published == 0:
		return buf, errChanging
	case published == known:
		return buf, nil
	case size > maxContext:
		return buf, errNoContext
	}
	buf = slices.Grow(buf, int(size))[:contextHeader+size]
	err := fs.ReadMemory(pid, buf[contextHeader:], message)
	var again [contextHeader]byte
	if fs.ReadMemory(pid, again[:], address) != nil || !bytes.Equal(again[:], buf[:contextHeader]) {
		return buf, errChanging
	}
	return buf, err
}

// parseContext parses the message ProcessContext of OpenTelemetry, up to the first byte
// that is malformed. It ignores the default service name of an SDK, because this name
// describes only the program. labels is Config.Labels. threads is processContext.threads.
func parseContext(message []byte, labels []string) (env environment, threads *ThreadContext) {
	for resource := range fields(message, 1) {
		for attribute := range fields(resource, 1) {
			env.set(keyValue(attribute))
		}
	}
	known, keys := false, slices.Repeat([]int{-1}, len(labels))
	for attribute := range fields(message, 2) {
		switch key, value := keyValue(attribute); key {
		case threadSchemaKey:
			known = value == threadSchema
		case threadKeysKey:
			number := 0
			for key := range elements(attribute) {
				if i := slices.Index(labels, key); i >= 0 {
					keys[i] = number
				}
				number++
			}
		}
	}
	if known {
		threads = &ThreadContext{Keys: keys}
	}
	if strings.HasPrefix(env.serviceName, "unknown_service") {
		env.serviceName = ""
	}
	return env, threads
}

// keyValue parses the message KeyValue. Values other than strings are empty.
func keyValue(message []byte) (key, value string) {
	for field := range fields(message, 1) {
		key = string(field)
	}
	for field := range fields(message, 2) {
		for text := range fields(field, 1) {
			value = string(text)
		}
	}
	return key, value
}

// elements returns the strings in the array of a message KeyValue. Other elements of the
// array are empty strings.
func elements(message []byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		for value := range fields(message, 2) {
			for array := range fields(value, 5) {
				for element := range fields(array, 1) {
					text := ""
					for field := range fields(element, 1) {
						text = string(field)
					}
					if !yield(text) {
						return
					}
				}
			}
		}
	}
}

// fields returns the strings and messages in a protobuf message whose fields have
// the given number.
func fields(message []byte, number protowire.Number) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(message) > 0 {
			is, kind, n := protowire.ConsumeTag(message)
			if n < 0 {
				return
			}
			size := protowire.ConsumeFieldValue(is, kind, message[n:])
			if size < 0 {
				return
			}
			if is == number && kind == protowire.BytesType {
				if field, _ := protowire.ConsumeBytes(message[n:]); !yield(field) {
					return
				}
			}
			message = message[n+size:]
		}
	}
}

// environment returns the description of the service. Attributes in the process context
// replace attributes in the environment.
func (p *Process) environment() environment {
	env := p.context.described
	for i, value := range p.facts.env.fields() {
		field := env.fields()[i]
		*field = cmp.Or(*field, *value)
	}
	return env
}
