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

// message describes a message of OTLP 1.11 and the fields to rewrite.
type message struct {
	name   string
	fields [12]field // by number
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
	anyValue := &message{name: "AnyValue"}
	keyValue := &message{name: "KeyValue"}
	arrayValue := &message{name: "ArrayValue"}
	arrayValue.fields[1] = field{is: nested, of: anyValue}
	keyValueList := &message{name: "KeyValueList"}
	keyValueList.fields[1] = field{is: nested, of: keyValue}
	anyValue.fields[5] = field{is: nested, of: arrayValue}
	anyValue.fields[6] = field{is: nested, of: keyValueList}
	anyValue.fields[8] = field{is: valueReference, name: "string_value_strindex"}
	keyValue.fields[2] = field{is: nested, of: anyValue}
	keyValue.fields[3] = field{is: keyReference, name: "key_strindex"}

	resource := &message{name: "Resource"}
	resource.fields[1] = field{is: nested, of: keyValue}
	scope := &message{name: "InstrumentationScope"}
	scope.fields[3] = field{is: nested, of: keyValue}
	valueType := &message{name: "ValueType", onlyIndices: true}
	valueType.fields[1] = field{is: index, name: "type_strindex"}
	valueType.fields[2] = field{is: index, name: "unit_strindex"}
	profile := &message{name: "Profile", onlyIndices: true}
	profile.fields[1] = field{is: nested, of: valueType} // sample_type
	profile.fields[5] = field{is: nested, of: valueType} // period_type
	scopeProfiles := &message{name: "ScopeProfiles"}
	scopeProfiles.fields[1] = field{is: nested, of: scope}
	scopeProfiles.fields[2] = field{is: nested, of: profile}
	resourceProfiles := &message{name: "ResourceProfiles"}
	resourceProfiles.fields[1] = field{is: nested, of: resource}
	resourceProfiles.fields[2] = field{is: nested, of: scopeProfiles}

	mapping := &message{name: "Mapping", onlyIndices: true}
	mapping.fields[4] = field{is: index, name: "filename_strindex"}
	function := &message{name: "Function", onlyIndices: true}
	function.fields[1] = field{is: index, name: "name_strindex"}
	function.fields[2] = field{is: index, name: "system_name_strindex"}
	function.fields[3] = field{is: index, name: "filename_strindex"}
	keyValueAndUnit := &message{name: "KeyValueAndUnit"}
	keyValueAndUnit.fields[1] = field{is: index, name: "key_strindex"}
	keyValueAndUnit.fields[2] = field{is: nested, of: anyValue}
	keyValueAndUnit.fields[3] = field{is: index, name: "unit_strindex"}
	dictionary := &message{name: "ProfilesDictionary"}
	dictionary.fields[1] = field{is: nested, of: mapping}
	dictionary.fields[3] = field{is: nested, of: function}
	dictionary.fields[stringTableField] = field{is: text}
	dictionary.fields[6] = field{is: nested, of: keyValueAndUnit}

	request := &message{name: "ExportProfilesServiceRequest"}
	request.fields[1] = field{is: nested, of: resourceProfiles}
	request.fields[dictionaryField] = field{is: nested, of: dictionary}
	return request
})
