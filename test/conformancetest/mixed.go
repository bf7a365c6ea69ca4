// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package conformancetest

import "google.golang.org/protobuf/encoding/protowire"

// Mixed returns a request in protobuf in which each resource has inline attributes as well
// as references. It takes attributes from the two given requests in turn, beginning with the
// request with references.
func Mixed(references, inlined []byte) []byte {
	resources := fieldsOf(inlined, 1)
	return replace(references, 1, func(i int, resourceProfiles []byte) []byte {
		attributes := fieldsOf(fieldsOf(resources[i], 1)[0], 1)
		return replace(resourceProfiles, 1, func(_ int, resource []byte) []byte {
			return replace(resource, 1, func(i int, attribute []byte) []byte {
				if i%2 == 1 {
					return attributes[i]
				}
				return attribute
			})
		})
	})
}

// fieldsOf returns the contents of all fields of a message that have the given number.
func fieldsOf(message []byte, n protowire.Number) (out [][]byte) {
	replace(message, n, func(_ int, content []byte) []byte {
		out = append(out, content)
		return content
	})
	return out
}

// replace returns a copy of a message in which the contents of all fields with
// the given number are replaced.
func replace(message []byte, n protowire.Number, with func(i int, content []byte) []byte) (out []byte) {
	i := 0
	for len(message) > 0 {
		number, typ, size := protowire.ConsumeField(message)
		if size < 0 {
			panic(protowire.ParseError(size))
		}
		field := message[:size]
		message = message[size:]
		if number != n || typ != protowire.BytesType {
			out = append(out, field...)
			continue
		}
		_, _, tag := protowire.ConsumeTag(field)
		content, _ := protowire.ConsumeBytes(field[tag:])
		out = protowire.AppendBytes(protowire.AppendTag(out, n, typ), with(i, content))
		i++
	}
	return out
}
