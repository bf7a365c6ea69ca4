// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Policy contains the parts of a policy that the form edits. If the policy
// lacks a part, the field is empty.
type Policy struct {
	Name string
	// Key and Glob are the key and the value of the first entry in the match of the policy.
	Key, Glob string
	// Monitor, Threshold and AverageOver belong to the first condition of any_of.
	Monitor, Threshold, AverageOver string
	Duration, Cooldown              string
	// MoreMatch is the number of entries in match after the first entry. MoreConditions is
	// the number of conditions after the first condition. The form does not change these
	// entries and conditions.
	MoreMatch, MoreConditions int
}

// errOneLine is returned if the form cannot edit a policy separately from the other policies
// of the list.
var errOneLine = errors.New("the form edits a list with each policy on lines of its own, that begin with a dash: edit the text")

// Policies returns a Policy for each policy of a document.
func Policies(document []byte) (found []Policy, err error) {
	items, err := itemsOf(document)
	for _, item := range items {
		found = append(found, policyOf(item))
	}
	return found, err
}

// Put returns a document in which the policy called name contains the parts of p. If name
// is empty, Put adds a policy at the end. The other parts of the policy and all other lines
// of the document stay the same.
func Put(document []byte, name string, p Policy) ([]byte, error) {
	items, err := itemsOf(document)
	if err != nil {
		return nil, err
	}
	if name == "" {
		indent := ""
		if len(items) > 0 {
			_, _, indent = linesOf(document, items, 0)
		}
		added, err := encode(&yaml.Node{Kind: yaml.MappingNode}, p, indent)
		if len(items) == 0 {
			document = bytes.TrimSuffix(bytes.TrimSpace(document), []byte("[]"))
		}
		if len(document) > 0 && !bytes.HasSuffix(document, []byte("\n")) {
			document = append(document[:len(document):len(document)], '\n')
		}
		return append(document[:len(document):len(document)], added...), err
	}
	i := slices.IndexFunc(items, func(item *yaml.Node) bool { return policyOf(item).Name == name })
	if i < 0 {
		return nil, fmt.Errorf("the text has no policy %q any more", name)
	}
	first, last, indent := linesOf(document, items, i)
	lines := bytes.SplitAfter(document, []byte("\n"))
	// The lines are parsed separately, because the nodes in items may include comments of
	// other policies.
	alone, err := itemsOf(bytes.Join(lines[first:last], nil))
	if err != nil || len(alone) != 1 {
		return nil, errors.Join(errOneLine, err)
	}
	changed, err := encode(alone[0], p, indent)
	if err != nil {
		return nil, err
	}
	out := slices.Concat(bytes.Join(lines[:first], nil), changed, bytes.Join(lines[last:], nil))
	var was, is []any
	err = errors.Join(yaml.Unmarshal(document, &was), yaml.Unmarshal(out, &is))
	if err != nil || len(was) != len(is) || !reflect.DeepEqual(slices.Delete(was, i, i+1), slices.Delete(is, i, i+1)) {
		return nil, errors.Join(errOneLine, err) // another policy would change too
	}
	return out, nil
}

// itemsOf returns the policies of a document. Each policy is a mapping.
func itemsOf(document []byte) ([]*yaml.Node, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(document, &root); err != nil {
		return nil, err
	}
	if len(root.Content) == 0 {
		return nil, nil
	}
	list := root.Content[0]
	switch {
	case list.Kind != yaml.SequenceNode:
		return nil, errors.New("the document is not a list of policies")
	case len(list.Content) > 0 && list.Style&yaml.FlowStyle != 0:
		return nil, errOneLine
	}
	for _, item := range list.Content {
		if item.Kind != yaml.MappingNode {
			return nil, fmt.Errorf("line %d is not a policy", item.Line)
		}
	}
	return list.Content, nil
}

// linesOf returns the line numbers of a policy, from first up to but not including last.
// It also returns the indentation of the policy's dash. Comments and blank lines after
// the policy belong to the next policy.
func linesOf(document []byte, items []*yaml.Node, i int) (first, last int, indent string) {
	lines := bytes.Split(document, []byte("\n"))
	dash := func(item *yaml.Node) int {
		line := item.Line - 1
		for line > 0 && !bytes.HasPrefix(bytes.TrimSpace(lines[line]), []byte("-")) {
			line--
		}
		return line
	}
	first, last = dash(items[i]), len(lines)
	indent = string(lines[first][:bytes.IndexByte(lines[first], '-')])
	if i+1 < len(items) {
		last = dash(items[i+1])
	}
	for last > first+1 {
		line := bytes.TrimSpace(lines[last-1])
		if len(line) > 0 && (line[0] != '#' || len(lines[last-1])-len(line) > len(indent)) {
			break
		}
		last--
	}
	return first, last, indent
}

// policyOf returns the parts of a policy.
func policyOf(item *yaml.Node) (p Policy) {
	of := func(node *yaml.Node, key string) string {
		if v := valueOf(node, key); v != nil {
			return v.Value
		}
		return ""
	}
	p.Name, p.Duration, p.Cooldown = of(item, "name"), of(item, "duration"), of(item, "cooldown")
	if match := valueOf(item, "match"); match != nil && len(match.Content) > 1 {
		p.Key, p.Glob, p.MoreMatch = match.Content[0].Value, match.Content[1].Value, len(match.Content)/2-1
	}
	if list := valueOf(item, "any_of"); list != nil && len(list.Content) > 0 {
		first := list.Content[0]
		p.Monitor, p.Threshold, p.AverageOver = of(first, "monitor"), of(first, "threshold"), of(first, "average_over")
		p.MoreConditions = len(list.Content) - 1
	}
	return p
}

// encode returns the lines of a policy with the parts of p.
func encode(item *yaml.Node, p Policy, indent string) ([]byte, error) {
	set(item, "name", p.Name, text)
	match := part(item, "match", yaml.MappingNode)
	if len(match.Content) > 1 {
		match.Content[0].Value = p.Key
	}
	set(match, p.Key, p.Glob, text)
	conditions := part(item, "any_of", yaml.SequenceNode)
	if len(conditions.Content) == 0 {
		conditions.Content = []*yaml.Node{{Kind: yaml.MappingNode, Style: yaml.FlowStyle}}
	}
	first := conditions.Content[0]
	set(first, "monitor", p.Monitor, plain)
	set(first, "threshold", p.Threshold, plain)
	set(first, "average_over", p.AverageOver, plain)
	if len(first.Content) == 0 {
		conditions.Content = conditions.Content[1:]
	}
	set(item, "duration", p.Duration, plain)
	set(item, "cooldown", p.Cooldown, plain)
	for _, key := range []string{"match", "any_of"} {
		if v := valueOf(item, key); len(v.Content) == 0 {
			remove(item, key)
		}
	}
	var b bytes.Buffer
	to := yaml.NewEncoder(&b)
	to.SetIndent(2)
	err := errors.Join(to.Encode([]*yaml.Node{item}), to.Close())
	var out strings.Builder
	for line := range strings.Lines(b.String()) {
		out.WriteString(indent + line)
	}
	return []byte(out.String()), err
}

// part returns the list or mapping under a key. If the key is missing, part adds it.
func part(node *yaml.Node, key string, kind yaml.Kind) *yaml.Node {
	v := valueOf(node, key)
	if v == nil {
		v = new(yaml.Node)
		node.Content = append(node.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, v)
	}
	if v.Kind != kind {
		*v = yaml.Node{Kind: kind, Style: yaml.FlowStyle}
	}
	return v
}

// valueOf returns the value of a mapping's key, or nil if the key is missing.
func valueOf(node *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == key {
			return node.Content[i+1]
		}
	}
	return nil
}

// These are the YAML tags of values. With the tag text, a value that looks like a number
// is quoted.
const (
	text  = "!!str"
	plain = ""
)

// set sets the value of a key. If the value is empty, set removes the key.
func set(node *yaml.Node, key, value, tag string) {
	switch v := valueOf(node, key); {
	case value == "":
		remove(node, key)
	case v == nil:
		node.Content = append(node.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, &yaml.Node{Kind: yaml.ScalarNode, Value: value, Tag: tag})
	case v.Value != value:
		v.Kind, v.Value, v.Tag, v.Style, v.Alias, v.Content = yaml.ScalarNode, value, tag, 0, nil, nil
	}
}

func remove(node *yaml.Node, key string) {
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == key {
			node.Content = slices.Delete(node.Content, i, i+2)
			return
		}
	}
}
