// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package inline rewrites requests with profiles to the older form of OTLP. Collectors have
// sent the newer form since version 0.161 (HTTP) and 0.163 (gRPC). In the newer form, the
// keys and strings of resource and scope attributes are references to the dictionary's
// string table. In the older form, attributes contain the strings.
package inline

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// These are the numbers of the fields KeyValue.key and AnyValue.string_value in
// opentelemetry/proto/common/v1.
const (
	keyField         protowire.Number = 1
	stringValueField protowire.Number = 1
)

// maxDepth is the maximum depth of nested messages. It includes attribute values.
const maxDepth = 64

// maxPrefix is the maximum size of the tag and the length that precede a string, in bytes.
const maxPrefix = 6

// maxWritten is the maximum total size of the strings that replace references, in bytes.
// The limit is needed because a request may refer to the same string many times.
const maxWritten = 64 << 20

var (
	errTooDeep = fmt.Errorf("messages nest deeper than %d", maxDepth)
	errWritten = fmt.Errorf("its attributes take more than %d MiB without references", maxWritten>>20)
)

// Request returns a protobuf ExportProfilesServiceRequest with strings in place of
// references. Strings that were only used by references are removed from the string
// table, and the indices are adjusted. A request without references is returned
// unchanged. The argument is never modified.
func Request(request []byte) ([]byte, error) {
	r := rewriter{}
	if err := r.collect(request); err != nil {
		return nil, fmt.Errorf("read the request's string table: %w", err)
	}
	r.used = make([]bool, len(r.strings))
	if err := r.mark(requestMessage(), request, 0); err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	if r.written == 0 {
		return request, nil
	}
	r.plan()
	out := make([]byte, 0, len(request)+r.written)
	return r.message(out, requestMessage(), request), nil
}

// rewriter contains the state of rewriting one request.
type rewriter struct {
	strings [][]byte
	used    []bool // by string; true if an index field uses the string, and not only references
	written int    // upper bound of the bytes that replace references
	// index contains the new index of each string. If all remaining strings
	// keep their indices, it is nil.
	index []int32
	next  int // next string while the string table is written
}

// collect finds the strings of the dictionary. It is a separate pass, because the
// dictionary comes after the fields that refer to the strings.
func (r *rewriter) collect(request []byte) error {
	return eachBytes(request, dictionaryField, func(dictionary []byte) error {
		return eachBytes(dictionary, stringTableField, func(s []byte) error {
			r.strings = append(r.strings, s) // a message of 2 GiB cannot have more strings than an int32 counts
			return nil
		})
	})
}

// eachBytes calls f with the content of each field with the given number.
func eachBytes(body []byte, number protowire.Number, f func([]byte) error) error {
	return eachField(body, func(n protowire.Number, typ protowire.Type, value []byte) error {
		if n != number || typ != protowire.BytesType {
			return nil
		}
		content, _ := protowire.ConsumeBytes(value)
		return f(content)
	})
}

// eachField calls f with the number, type and value of each field of a message. A value of
// protowire.BytesType includes its length prefix.
func eachField(body []byte, f func(protowire.Number, protowire.Type, []byte) error) error {
	for len(body) > 0 {
		n, typ, tag := protowire.ConsumeTag(body)
		if tag < 0 {
			return protowire.ParseError(tag)
		}
		size := protowire.ConsumeFieldValue(n, typ, body[tag:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		if err := f(n, typ, body[tag:tag+size]); err != nil {
			return err
		}
		body = body[tag+size:]
	}
	return nil
}

// mark records which strings are used, and adds up the sizes of the strings that replace
// references. It also checks every index and the structure of each message, so that
// rewriter.message needs no checks.
func (r *rewriter) mark(m *message, body []byte, depth int) error {
	if depth > maxDepth {
		return errTooDeep
	}
	return eachField(body, func(n protowire.Number, typ protowire.Type, value []byte) error {
		switch f := m.field(n, typ); f.is {
		case index, keyReference, valueReference:
			v, _ := protowire.ConsumeVarint(value)
			if v >= uint64(len(r.strings)) && v != 0 {
				return fmt.Errorf("%s.%s is %d, and the string table has %d entries", m.name, f.name, int32(v), len(r.strings))
			}
			switch {
			case v == 0 && f.is != valueReference: // not set
			case f.is == index:
				r.used[v] = true
			default:
				return r.measure(int(v))
			}
		case nested:
			content, _ := protowire.ConsumeBytes(value)
			return r.mark(f.of, content, depth+1)
		}
		return nil
	})
}

// measure adds to r.written the size of the string that replaces a reference. It returns an
// error if r.written then exceeds maxWritten.
func (r *rewriter) measure(i int) error {
	if r.written += maxPrefix + len(r.string(i)); r.written > maxWritten {
		return errWritten
	}
	return nil
}

// string returns a string of the table. If the table is empty, index 0 is the empty string.
func (r *rewriter) string(i int) []byte {
	if i == 0 && len(r.strings) == 0 {
		return nil
	}
	return r.strings[i]
}

// plan assigns new indices to the remaining strings. The first string always remains,
// because index 0 must be the empty string.
func (r *rewriter) plan() {
	if len(r.strings) > 0 {
		r.used[0] = true
	}
	last := len(r.used)
	for last > 0 && !r.used[last-1] {
		last--
	}
	if !slices.Contains(r.used[:last], false) {
		return
	}
	r.index = make([]int32, last)
	kept := int32(0)
	for i := range r.index {
		r.index[i] = kept
		if r.used[i] {
			kept++
		}
	}
}

// message appends a message to out, with the references to strings replaced by the strings.
// The method mark must have checked the message.
func (r *rewriter) message(out []byte, m *message, body []byte) []byte {
	for len(body) > 0 {
		n, typ, tag := protowire.ConsumeTag(body)
		size := tag + protowire.ConsumeFieldValue(n, typ, body[tag:])
		value := body[tag:size]
		switch f := m.field(n, typ); f.is {
		case index:
			v, _ := protowire.ConsumeVarint(value)
			if r.index != nil {
				v = uint64(r.index[v])
			}
			out = protowire.AppendVarint(protowire.AppendTag(out, n, typ), v)
		case keyReference:
			if v, _ := protowire.ConsumeVarint(value); v != 0 {
				out = protowire.AppendBytes(protowire.AppendTag(out, keyField, protowire.BytesType), r.strings[v])
			}
		case valueReference:
			v, _ := protowire.ConsumeVarint(value)
			out = protowire.AppendBytes(protowire.AppendTag(out, stringValueField, protowire.BytesType), r.string(int(v)))
		case text:
			if r.used[r.next] {
				out = append(out, body[:size]...)
			}
			r.next++
		case nested:
			if f.of.onlyIndices && r.index == nil {
				out = append(out, body[:size]...)
				break
			}
			content, _ := protowire.ConsumeBytes(value)
			out = r.nested(protowire.AppendTag(out, n, typ), f.of, content)
		default:
			out = append(out, body[:size]...)
		}
		body = body[size:]
	}
	return out
}

// nested appends a message and its length prefix.
func (r *rewriter) nested(out []byte, m *message, body []byte) []byte {
	at := len(out)
	out = protowire.AppendVarint(out, uint64(len(body))) // guesses the size of the length prefix
	begin := len(out)
	out = r.message(out, m, body)
	var prefix [maxPrefix]byte
	return slices.Replace(out, at, begin, protowire.AppendVarint(prefix[:0], uint64(len(out)-begin))...)
}
