// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package inline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// These are the fields of OTLP's JSON that are rewritten or that identify the fields
// to rewrite.
const (
	jsonDictionary     = "dictionary"
	jsonStringTable    = "stringTable"
	jsonAttributeTable = "attributeTable"
	jsonKeyIndex       = "keyStrindex"
	jsonValueIndex     = "stringValueStrindex"
)

// JSON rewrites a request in JSON in the same way as [Request] rewrites a request in
// protobuf. The order of an object's fields may change.
func JSON(request []byte) ([]byte, error) {
	in := json.NewDecoder(bytes.NewReader(request))
	in.UseNumber() // keeps the exact values of numbers beyond 2^53
	var root map[string]any
	if err := in.Decode(&root); err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	r := jsonRewriter{}
	if dictionary, ok := root[jsonDictionary].(map[string]any); ok {
		table, _ := dictionary[jsonStringTable].([]any)
		for _, s := range table {
			text, ok := s.(string)
			if !ok {
				return nil, fmt.Errorf("read the request: %v in %s is no string", s, jsonStringTable)
			}
			r.strings = append(r.strings, []byte(text))
		}
	}
	r.used = make([]bool, len(r.strings))
	if err := r.each(root, "", r.mark); err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	if r.written == 0 {
		return request, nil
	}
	r.plan()
	if err := r.each(root, "", r.write); err != nil {
		return nil, err
	}
	r.writeTable(root)
	var out bytes.Buffer
	to := json.NewEncoder(&out)
	to.SetEscapeHTML(false)
	if err := to.Encode(root); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// jsonRewriter rewrites a decoded JSON request.
type jsonRewriter struct{ rewriter }

// each calls f for every field below v that contains an index into the string table. within
// is the name of the field that contains v.
func (r *jsonRewriter) each(v any, within string, f func(object map[string]any, name string, reference bool, i int) error) error {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if err := r.each(e, within, f); err != nil {
				return err
			}
		}
	case map[string]any:
		for name, value := range v {
			number, ok := value.(json.Number)
			if !ok || !strings.HasSuffix(name, "Strindex") {
				if err := r.each(value, name, f); err != nil {
					return err
				}
				continue
			}
			i, err := number.Int64()
			if err != nil || i < 0 || i >= int64(len(r.strings)) && i != 0 {
				return fmt.Errorf("%s is %s, and the string table has %d entries", name, number, len(r.strings))
			}
			// In both forms, the key of an entry of the attribute table is an index
			// and not a reference.
			reference := name == jsonValueIndex || name == jsonKeyIndex && within != jsonAttributeTable
			if err := f(v, name, reference, int(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *jsonRewriter) mark(_ map[string]any, _ string, reference bool, i int) error {
	switch {
	case reference:
		return r.measure(i)
	case i != 0:
		r.used[i] = true
	}
	return nil
}

func (r *jsonRewriter) write(object map[string]any, name string, reference bool, i int) error {
	switch {
	case !reference && r.index != nil && i != 0:
		object[name] = r.index[i]
	case reference && name == jsonKeyIndex:
		delete(object, name)
		object["key"] = string(r.string(i))
	case reference:
		delete(object, name)
		object["stringValue"] = string(r.string(i))
	}
	return nil
}

// writeTable removes unused strings from the string table.
func (r *jsonRewriter) writeTable(root map[string]any) {
	dictionary, ok := root[jsonDictionary].(map[string]any)
	if !ok {
		return
	}
	kept := []string{}
	for i, s := range r.strings {
		if r.used[i] {
			kept = append(kept, string(s))
		}
	}
	dictionary[jsonStringTable] = kept
}
