// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package inline

import (
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	dictionaryField  protowire.Number = 2 // field of the request
	stringTableField protowire.Number = 5 // field of the dictionary
)

// kind describes how the content of a field is rewritten.
type kind uint8

const (
	copied         kind = iota // content that is not rewritten
	nested                     // a message with fields to rewrite
	index                      // an index into the string table
	keyReference               // the index of an attribute's key
	valueReference             // the index of an attribute's string
	text                       // an entry of the string table
)

type field struct {
	is   kind
	name string
	of   *message // the message of a nested field
}

// fields are the fields of a message by number.
type fields [12]field

// message describes a message of OTLP 1.11 and the fields to rewrite.
type message struct {
	name   string // empty if the message has no index itself
	fields fields
	// onlyIndices reports whether the message is copied unchanged if all
	// strings keep their indices.
	onlyIndices bool
}

// field returns the description of the field with number n. If the field has an
// unexpected wire type, field returns the zero value, so the field is copied.
func (m *message) field(n protowire.Number, typ protowire.Type) field {
	if int(n) >= len(m.fields) {
		return field{}
	}
	f := m.fields[n]
	switch f.is {
	case nested, text:
		if typ != protowire.BytesType {
			return field{}
		}
	case index, keyReference, valueReference:
		if typ != protowire.VarintType {
			return field{}
		}
	}
	return f
}

// requestMessage returns the schema of a request. Samples, locations, links and stacks
// contain no strings.
var requestMessage = sync.OnceValue(func() *message {
	in := func(of *message) field { return field{is: nested, of: of} }
	at := func(name string) field { return field{is: index, name: name} }
	anyValue, keyValue := &message{name: "AnyValue"}, &message{name: "KeyValue"}
	arrayValue := &message{fields: fields{1: in(anyValue)}}
	keyValueList := &message{fields: fields{1: in(keyValue)}}
	anyValue.fields = fields{5: in(arrayValue), 6: in(keyValueList), 8: {is: valueReference, name: "string_value_strindex"}}
	keyValue.fields = fields{2: in(anyValue), 3: {is: keyReference, name: "key_strindex"}}

	resource := &message{fields: fields{1: in(keyValue)}}
	scope := &message{fields: fields{3: in(keyValue)}}
	valueType := &message{name: "ValueType", onlyIndices: true, fields: fields{1: at("type_strindex"), 2: at("unit_strindex")}}
	profile := &message{onlyIndices: true, fields: fields{1: in(valueType), 5: in(valueType)}} // sample_type, period_type
	scopeProfiles := &message{fields: fields{1: in(scope), 2: in(profile)}}
	resourceProfiles := &message{fields: fields{1: in(resource), 2: in(scopeProfiles)}}

	mapping := &message{name: "Mapping", onlyIndices: true, fields: fields{4: at("filename_strindex")}}
	function := &message{name: "Function", onlyIndices: true, fields: fields{
		1: at("name_strindex"), 2: at("system_name_strindex"), 3: at("filename_strindex"),
	}}
	keyValueAndUnit := &message{name: "KeyValueAndUnit", fields: fields{1: at("key_strindex"), 2: in(anyValue), 3: at("unit_strindex")}}
	dictionary := &message{fields: fields{1: in(mapping), 3: in(function), stringTableField: {is: text}, 6: in(keyValueAndUnit)}}
	return &message{fields: fields{1: in(resourceProfiles), dictionaryField: in(dictionary)}}
})
