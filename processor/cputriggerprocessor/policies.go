// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cputriggerprocessor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/confmap"
	"go.yaml.in/yaml/v3"

	"github.com/hotprofile/hotprofile/internal/configlog"
)

// These limits apply to a list of policies that is read at run time. The limits are
// needed because each policy costs memory and evaluation time for each of up to 10,000
// units.
const (
	maxPolicies     = 100
	maxConditions   = 200    // conditions of all policies
	maxPolicyValues = 20_000 // keys and values of the document, with aliases expanded
	maxPolicyDepth  = 16     // levels of the document, with aliases expanded
	maxPolicyFaults = 10     // faults that an error lists
)

// withPolicies returns a configuration with the policies of a YAML document. The document
// is a list in the format of the key policies. The error contains the line of each fault.
func (cfg *Config) withPolicies(document []byte) (*Config, error) {
	list, err := parsePolicies(document)
	if err != nil {
		return nil, err
	}
	next := *cfg
	if next.Policies, err = decodePolicies(list); err != nil {
		return nil, err
	}
	if err := atLines(list, flatten(next.validatePolicies())); err != nil {
		return nil, err
	}
	return &next, nil
}

// atLines joins the first maxPolicyFaults faults, each with its line. It returns
// nil if there are no faults.
func atLines(list *yaml.Node, faults []error) error {
	n := len(faults)
	faults = faults[:min(n, maxPolicyFaults)]
	for i := range faults {
		faults[i] = atLine(list, faults[i])
	}
	if n > maxPolicyFaults {
		faults = append(faults, fmt.Errorf("and %d more", n-maxPolicyFaults))
	}
	return errors.Join(faults...)
}

// parsePolicies parses a document and returns its list of policies. It returns an error if
// the document exceeds a limit.
func parsePolicies(document []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(document))
	var root yaml.Node
	if err := decoder.Decode(&root); errors.Is(err, io.EOF) {
		return nil, errors.New("it is empty: to have no policy open gates, keep one with enabled: false")
	} else if err != nil {
		return nil, err
	}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, errors.New("it must be one YAML document")
	}
	list := root.Content[0]
	switch {
	case list.Kind == yaml.MappingNode:
		return nil, fmt.Errorf("line %d: it must be a list of policies (- name: …), as below the key policies, without that key", list.Line)
	case list.Kind != yaml.SequenceNode:
		return nil, fmt.Errorf("line %d: it must be a list of policies (- name: …)", list.Line)
	case len(list.Content) == 0:
		return nil, fmt.Errorf("line %d: it must have at least one policy: to have none open gates, keep one with enabled: false", list.Line)
	case len(list.Content) > maxPolicies:
		return nil, fmt.Errorf("line %d: it has %d policies, and at most %d are allowed", list.Content[maxPolicies].Line, len(list.Content), maxPolicies)
	}
	if err := checkSize(list, new(int), 0); err != nil {
		return nil, err
	}
	return list, nil
}

// checkSize returns an error if a document with expanded aliases has too many values or is
// too deep. The cost of confmap is quadratic in the depth. The limits also stop the
// recursion if an alias refers to a node that contains the alias.
func checkSize(n *yaml.Node, count *int, depth int) error {
	switch *count++; {
	case *count > maxPolicyValues:
		return fmt.Errorf("it has more than %d keys and values, with aliases expanded", maxPolicyValues)
	case depth > maxPolicyDepth:
		return fmt.Errorf("line %d: it is more than %d levels deep, with aliases expanded", n.Line, maxPolicyDepth)
	case n.Kind == yaml.AliasNode:
		return checkSize(n.Alias, count, depth+1)
	}
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 && (strings.Contains(child.Value, confmap.KeyDelimiter) || child.Kind == yaml.AliasNode) {
			return fmt.Errorf("line %d: neither %s nor an alias is allowed in a key", child.Line, confmap.KeyDelimiter)
		}
		if err := checkSize(child, count, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// decodePolicies decodes a list in the same way as the configuration, but without expanding
// variables. Unknown keys are errors.
func decodePolicies(list *yaml.Node) ([]PolicyConfig, error) {
	var items []any
	if err := list.Decode(&items); err != nil {
		return nil, err
	}
	type document struct {
		Policies []PolicyConfig `mapstructure:"policies"`
	}
	if err := configlog.Check(confmap.NewFromStringMap(map[string]any{"policies": items}), document{}); err != nil {
		return nil, atLines(list, flatten([]error{err}))
	}
	policies := make([]PolicyConfig, len(items))
	conditions := 0
	for i, item := range items {
		keys, ok := item.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("line %d: policies[%d]: must be a policy (name: …)", list.Content[i].Line, i)
		}
		if err := confmap.NewFromStringMap(keys).Unmarshal(&policies[i]); err != nil {
			return nil, decodeFault(list.Content[i], i, err)
		}
		if conditions += len(policies[i].AnyOf); conditions > maxConditions {
			return nil, fmt.Errorf("line %d: policies[%d]: with it the policies have more than %d conditions", list.Content[i].Line, i, maxConditions)
		}
	}
	namePolicies(policies)
	return policies, nil
}

// decodeLevel matches the beginning of a confmap error, which is the path of a value
// relative to the enclosing error. Every error except the innermost continues with
// "decoding failed".
var decodeLevel = regexp.MustCompile(`^\s*'([^']*)' (decoding failed due to the following error\(s\):)?`)

// decodeFault returns the first fault in a confmap error, with its line and key.
func decodeFault(policy *yaml.Node, index int, err error) error {
	_, text, _ := strings.Cut(err.Error(), "\n")
	path := ""
	for m := decodeLevel.FindStringSubmatch(text); m != nil; m = decodeLevel.FindStringSubmatch(text) {
		if m[1] != "" && !strings.HasPrefix(m[1], "cputriggerprocessor.") { // a type name is not part of the path
			path += "." + m[1]
		}
		text = text[len(m[0]):]
	}
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	return fmt.Errorf("line %d: policies[%d]%s: %s", find(policy, path).Line, index, path, text)
}

// flatten replaces joined errors with their parts, in order, and drops nil.
func flatten(errs []error) (out []error) {
	for _, err := range errs {
		if joined, ok := err.(interface{ Unwrap() []error }); ok && strings.Contains(err.Error(), "\n") {
			out = append(out, flatten(joined.Unwrap())...)
		} else if err != nil {
			out = append(out, err)
		}
	}
	return out
}

var faultPath = regexp.MustCompile(`^policies(\S*?):?\s`)

// atLine adds the line number to a fault that begins with a key.
func atLine(list *yaml.Node, fault error) error {
	m := faultPath.FindStringSubmatch(fault.Error())
	if m == nil {
		return fault
	}
	return fmt.Errorf("line %d: %w", find(list, m[1]).Line, fault)
}

// find returns the node at a path, such as [0].any_of[1].threshold. For a value in a
// mapping, it returns the node of the key. If a part of the path is missing, it returns the
// node above that part. If several keys of a mapping are prefixes of the path, the longest
// key is a part of the path.
func find(n *yaml.Node, path string) *yaml.Node {
	of := target(n)
	at, value, rest := n, of, path
	for i, child := range of.Content {
		step, to := fmt.Sprintf("[%d]", i), child
		if of.Kind == yaml.MappingNode {
			if i%2 == 1 {
				continue
			}
			step, to = "."+child.Value, of.Content[i+1]
		}
		if left, ok := strings.CutPrefix(path, step); ok && len(left) < len(rest) && (left == "" || left[0] == '.' || left[0] == '[') {
			at, value, rest = child, target(to), left
		}
	}
	if value == of {
		return at
	}
	if deeper := find(value, rest); deeper != value {
		return deeper
	}
	return at
}

// target returns the node to which an alias refers, or the node itself.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// policyChanges contains the names of the policies that differ between two lists.
type policyChanges struct{ added, removed, changed []string }

func (c policyChanges) none() bool { return len(c.added)+len(c.removed)+len(c.changed) == 0 }

// changesOf compares the enabled policies of two configurations, by name and content.
func changesOf(before, after *Config) (c policyChanges) {
	old, now := before.enabled(), after.enabled()
	named := func(name string) func(PolicyConfig) bool {
		return func(p PolicyConfig) bool { return p.Name == name }
	}
	for _, p := range now {
		switch n := slices.IndexFunc(old, named(p.Name)); {
		case n < 0:
			c.added = append(c.added, p.Name)
		case !reflect.DeepEqual(p, old[n]):
			c.changed = append(c.changed, p.Name)
		}
	}
	for _, p := range old {
		if !slices.ContainsFunc(now, named(p.Name)) {
			c.removed = append(c.removed, p.Name)
		}
	}
	return c
}
