// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package conformancetest

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// message is a message of OTLP 1.11, which the collector versions 0.159 to 0.164 use.
// fields contains the message's fields by number. The messages are listed here because
// a decoder skips unknown fields.
type message struct {
	name   string
	fields map[protowire.Number]field
}

type field struct {
	name string
	is   contents
	of   string // the name of the nested message, if any
}

type contents uint8

const (
	number   contents = iota // a varint
	fixed                    // eight bytes
	numbers                  // varints, packed or not
	fixeds                   // eight bytes each, packed or not
	text                     // UTF-8
	raw                      // any bytes
	nested                   // one message
	repeated                 // any number of messages
	texts                    // any number of UTF-8 strings
)

// dictionaryValues is the prefix of the names of messages
// below the dictionary's attributes.
const dictionaryValues = "dictionary "

// messages returns the messages of a request, by name.
func messages() map[string]message {
	schema := map[string]message{}
	add := func(name string, fields map[protowire.Number]field) {
		schema[name] = message{name: name, fields: fields}
	}
	add("request", map[protowire.Number]field{
		1: {"resource_profiles", repeated, "resource profiles"}, 2: {"dictionary", nested, "dictionary"},
	})
	add("resource profiles", map[protowire.Number]field{
		1: {"resource", nested, "resource"}, 2: {"scope_profiles", repeated, "scope profiles"}, 3: {"schema_url", text, ""},
	})
	add("resource", map[protowire.Number]field{
		1: {"attributes", repeated, "attribute"}, 2: {"dropped_attributes_count", number, ""}, 3: {"entity_refs", repeated, "entity"},
	})
	add("entity", map[protowire.Number]field{
		1: {"schema_url", text, ""}, 2: {"type", text, ""}, 3: {"id_keys", texts, ""}, 4: {"description_keys", texts, ""},
	})
	add("scope profiles", map[protowire.Number]field{
		1: {"scope", nested, "scope"}, 2: {"profiles", repeated, "profile"}, 3: {"schema_url", text, ""},
	})
	add("scope", map[protowire.Number]field{
		1: {"name", text, ""}, 2: {"version", text, ""}, 3: {"attributes", repeated, "attribute"}, 4: {"dropped_attributes_count", number, ""},
	})
	add("profile", map[protowire.Number]field{
		1: {"sample_type", nested, "type"}, 2: {"samples", repeated, "sample"}, 3: {"time_unix_nano", fixed, ""},
		4: {"duration_nano", number, ""}, 5: {"period_type", nested, "type"}, 6: {"period", number, ""}, 7: {"profile_id", raw, ""},
		8: {"dropped_attributes_count", number, ""}, 9: {"original_payload_format", text, ""}, 10: {"original_payload", raw, ""},
		11: {"attribute_indices", numbers, ""},
	})
	add("type", map[protowire.Number]field{1: {"type_strindex", number, ""}, 2: {"unit_strindex", number, ""}})
	add("sample", map[protowire.Number]field{
		1: {"stack_index", number, ""}, 2: {"attribute_indices", numbers, ""}, 3: {"link_index", number, ""},
		4: {"values", numbers, ""}, 5: {"timestamps_unix_nano", fixeds, ""},
	})
	add("dictionary", map[protowire.Number]field{
		1: {"mapping_table", repeated, "mapping"}, 2: {"location_table", repeated, "location"}, 3: {"function_table", repeated, "function"},
		4: {"link_table", repeated, "link"}, 5: {"string_table", texts, ""}, 6: {"attribute_table", repeated, "table attribute"},
		7: {"stack_table", repeated, "stack"},
	})
	add("mapping", map[protowire.Number]field{
		1: {"memory_start", number, ""}, 2: {"memory_limit", number, ""}, 3: {"file_offset", number, ""},
		4: {"filename_strindex", number, ""}, 5: {"attribute_indices", numbers, ""},
	})
	add("location", map[protowire.Number]field{
		1: {"mapping_index", number, ""}, 2: {"address", number, ""}, 3: {"lines", repeated, "line"}, 4: {"attribute_indices", numbers, ""},
	})
	add("line", map[protowire.Number]field{1: {"function_index", number, ""}, 2: {"line", number, ""}, 3: {"column", number, ""}})
	add("function", map[protowire.Number]field{
		1: {"name_strindex", number, ""}, 2: {"system_name_strindex", number, ""}, 3: {"filename_strindex", number, ""}, 4: {"start_line", number, ""},
	})
	add("link", map[protowire.Number]field{1: {"trace_id", raw, ""}, 2: {"span_id", raw, ""}})
	add("table attribute", map[protowire.Number]field{
		1: {"key_strindex", number, ""}, 2: {"value", nested, dictionaryValues + "value"}, 3: {"unit_strindex", number, ""},
	})
	add("stack", map[protowire.Number]field{1: {"location_indices", numbers, ""}})
	// The dictionary's attributes have the same kinds of values as attributes of
	// resources and scopes, but no receiver resolves references in them.
	for _, in := range []string{"", dictionaryValues} {
		add(in+"attribute", map[protowire.Number]field{
			1: {"key", text, ""}, 2: {"value", nested, in + "value"}, 3: {"key_strindex", number, ""},
		})
		add(in+"value", map[protowire.Number]field{
			1: {"string_value", text, ""}, 2: {"bool_value", number, ""}, 3: {"int_value", number, ""}, 4: {"double_value", fixed, ""},
			5: {"array_value", nested, in + "values"}, 6: {"kvlist_value", nested, in + "attributes"}, 7: {"bytes_value", raw, ""},
			8: {"string_value_strindex", number, ""},
		})
		add(in+"values", map[protowire.Number]field{1: {"values", repeated, in + "value"}})
		add(in+"attributes", map[protowire.Number]field{1: {"values", repeated, in + "attribute"}})
	}
	return schema
}

// wire checks the parts of a request that are lost in decoding.
type wire struct {
	findings
	schema map[string]message
	// referenced is true if attributes of resources and scopes must be references.
	referenced bool
	// depth is the current nesting depth of messages.
	depth int
}

const maxDepth = 64

func (w *wire) request(body []byte) {
	w.schema = messages()
	if !w.message("request", body, "the request") {
		return
	}
	seen := map[protowire.Number]bool{}
	for len(body) > 0 {
		n, _, size := protowire.ConsumeField(body)
		seen[n] = true
		body = body[size:]
	}
	if !seen[2] {
		w.broken(EmptyRequest, "the request has no dictionary")
	}
}

// message checks a message and its fields. It reports whether the
// message could be read to its end.
func (w *wire) message(name string, body []byte, where string) bool {
	if w.depth++; w.depth > maxDepth {
		w.broken(WireFormat, "%s nests deeper than %d", where, maxDepth)
		return false
	}
	defer func() { w.depth-- }()
	m := w.schema[name]
	count := map[protowire.Number]int{}
	for len(body) > 0 {
		n, typ, size := protowire.ConsumeTag(body)
		if size < 0 {
			w.broken(WireFormat, "%s: %v", where, protowire.ParseError(size))
			return false
		}
		body = body[size:]
		size = protowire.ConsumeFieldValue(n, typ, body)
		if size < 0 {
			w.broken(WireFormat, "%s, field %d: %v", where, n, protowire.ParseError(size))
			return false
		}
		value := body[:size]
		body = body[size:]
		f, ok := m.fields[n]
		if !ok {
			w.broken(WireFormat, "%s has a field %d, which %s has not", where, n, name)
			continue
		}
		at := fmt.Sprintf("%s, %s", where, f.name)
		if f.is == repeated || f.is == texts {
			at += fmt.Sprintf(" %d", count[n])
		} else if count[n] > 0 && f.is != numbers && f.is != fixeds {
			w.broken(WireFormat, "%s is there twice", at)
		}
		count[n]++
		if !w.field(f, typ, value, at) {
			return false
		}
		w.form(name, f, at)
	}
	w.oneForm(name, count, where)
	return true
}

// field checks one value of a field.
func (w *wire) field(f field, typ protowire.Type, value []byte, at string) bool {
	want := protowire.BytesType
	switch f.is {
	case number:
		want = protowire.VarintType
	case fixed:
		want = protowire.Fixed64Type
	case numbers, fixeds:
		if typ != protowire.BytesType { // not packed
			want = map[contents]protowire.Type{numbers: protowire.VarintType, fixeds: protowire.Fixed64Type}[f.is]
		}
	}
	if typ != want {
		w.broken(WireFormat, "%s is of wire type %d, want %d", at, typ, want)
		return false
	}
	if typ != protowire.BytesType {
		return true
	}
	content, _ := protowire.ConsumeBytes(value)
	switch f.is {
	case text, texts:
		if !utf8.Valid(content) {
			w.broken(UTF8, "%s: %q", at, content)
		}
	case numbers:
		for len(content) > 0 {
			_, n := protowire.ConsumeVarint(content)
			if n < 0 {
				w.broken(WireFormat, "%s: %v", at, protowire.ParseError(n))
				return false
			}
			content = content[n:]
		}
	case fixeds:
		if len(content)%8 != 0 {
			w.broken(WireFormat, "%s has %d bytes", at, len(content))
			return false
		}
	case nested, repeated:
		return w.message(f.of, content, at)
	case raw:
		w.id(f.name, content, at)
	}
	return true
}

// id checks the length of an id. An empty id is accepted.
func (w *wire) id(name string, content []byte, at string) {
	length, r := 0, LinkIDs
	switch name {
	case "profile_id":
		length, r = 16, ProfileID
	case "trace_id":
		length = 16
	case "span_id":
		length = 8
	default:
		return
	}
	if len(content) != 0 && len(content) != length {
		w.broken(r, "%s has %d bytes, want %d", at, len(content), length)
	}
}

// form reports a key or a string that is not in the form of the request. The form is
// either inline or a reference into the dictionary. The attributes of the dictionary use
// another message, whose keys are indices in both forms.
func (w *wire) form(message string, f field, at string) {
	kind, inDictionary := strings.CutPrefix(message, dictionaryValues)
	if kind != "attribute" && kind != "value" {
		return
	}
	switch f.name {
	case "key", "string_value":
		if w.referenced && !inDictionary {
			w.broken(ReferencedAttributes, "%s is inline", at)
		}
	case "key_strindex", "string_value_strindex":
		if !w.referenced || inDictionary {
			w.broken(InlineAttributes, "%s is a reference into the dictionary", at)
		}
	}
}

// oneForm reports a key or a string that is present both inline and as a reference. count is
// the number of times that each field of the message is present.
func (w *wire) oneForm(message string, count map[protowire.Number]int, where string) {
	switch strings.TrimPrefix(message, dictionaryValues) {
	case "attribute":
		if count[1] > 0 && count[3] > 0 {
			w.broken(OneForm, "%s has both key and key_strindex", where)
		}
	case "value":
		if count[1] > 0 && count[8] > 0 {
			w.broken(OneForm, "%s has both string_value and string_value_strindex", where)
		}
	}
}
