// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package hotunitsextension

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"
	"time"
	"unicode"

	"go.opentelemetry.io/otel/attribute"

	"github.com/hotprofile/hotprofile/internal/boundedread"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
	"github.com/hotprofile/hotprofile/internal/truncate"
)

// These are the names of built-in templates.
const (
	templateJSON  = "json"
	templateSlack = "slack"
	templateTeams = "teams"
)

// These constants limit a template. maxTemplateSize is the maximum size of the template
// file in bytes, and maxBodySize is the maximum size of the rendered request body in
// bytes. maxSteps is the maximum number of steps of one rendering.
const (
	maxTemplateSize = 1 << 20
	maxBodySize     = 1 << 20
	maxSteps        = 100_000
)

//go:embed templates/*.tmpl
var builtIn embed.FS

// Message is the content of a webhook's request. A template renders the Message.
// Without a template, the webhook posts the Message as JSON.
type Message struct {
	Events []MessageEvent `json:"events"`
	// More is the number of further events that are not in the message.
	More int `json:"more"`
}

// MessageEvent is an event in a Message.
type MessageEvent struct {
	Name       string         `json:"name"`
	Time       time.Time      `json:"time"`
	Body       string         `json:"body"`
	Resource   map[string]any `json:"resource"`
	Attributes map[string]any `json:"attributes"`
	TraceID    string         `json:"trace_id,omitempty"`
	SpanID     string         `json:"span_id,omitempty"`
}

// Title returns the event's name in a readable form, such as "gate opened".
func (e MessageEvent) Title() string {
	return strings.NewReplacer(".", " ", "_", " ").Replace(strings.TrimPrefix(e.Name, attr.Prefix))
}

// Get returns an attribute of the event as a string. If the event lacks the attribute,
// Get returns the attribute of the event's resource. If the resource lacks the attribute
// too, Get returns an empty string.
func (e MessageEvent) Get(key string) string {
	for _, attributes := range []map[string]any{e.Attributes, e.Resource} {
		if v, ok := attributes[key]; ok {
			return fmt.Sprint(v)
		}
	}
	return ""
}

func messageOf(events []Event, more int) Message {
	m := Message{Events: make([]MessageEvent, len(events)), More: more}
	for i, e := range events {
		m.Events[i] = MessageEvent{Name: e.Name, Time: e.Time, Body: e.Body, Resource: mapOf(e.Resource), Attributes: mapOf(e.Attributes)}
		if e.TraceID.IsValid() {
			m.Events[i].TraceID = e.TraceID.String()
		}
		if e.SpanID.IsValid() {
			m.Events[i].SpanID = e.SpanID.String()
		}
	}
	return m
}

func mapOf(attributes []attribute.KeyValue) map[string]any {
	m := make(map[string]any, len(attributes))
	for _, kv := range attributes {
		m[string(kv.Key)] = kv.Value.AsInterface()
	}
	return m
}

// renderer renders messages as request bodies. It is not safe for concurrent use.
type renderer struct {
	template *template.Template // nil for JSON
	// steps is the number of steps that the template may still take.
	steps *int
}

// newRenderer returns the renderer of a built-in template with the given name. If there
// is no such template, the name is the path of a file. If isJSON is true, the template
// must render an example as JSON.
func newRenderer(name string, isJSON bool) (renderer, error) {
	var text []byte
	var err error
	switch name {
	case templateJSON:
		return renderer{}, nil
	case templateSlack, templateTeams:
		text, err = builtIn.ReadFile("templates/" + name + ".json.tmpl")
	default:
		text, _, err = boundedread.File(name, maxTemplateSize)
	}
	if err != nil {
		return renderer{}, fmt.Errorf("read the template, which is json, slack, teams, or the path of a file: %w", err)
	}
	r := renderer{steps: new(int)}
	r.template, err = template.New(name).Option("missingkey=zero").Funcs(functions()).Funcs(template.FuncMap{stepFunction: r.step}).Parse(string(text))
	if err != nil {
		return renderer{}, fmt.Errorf("parse the template: %w", err)
	}
	step := aStep()
	for _, t := range r.template.Templates() {
		countSteps(t.Root, step)
	}
	body, err := r.render(example())
	if err == nil && isJSON && !json.Valid(body) {
		err = errors.New("the result for an example is no JSON: write values with the function json, or set the header Content-Type if it is not meant to be JSON")
	}
	if err != nil {
		return renderer{}, fmt.Errorf("try the template %s: %w", name, err)
	}
	return r, nil
}

// stepFunction is the name of the function that each block of a template calls first.
const stepFunction = "countStep"

// step counts a step. After maxSteps steps, it returns an error. The error stops a
// template whose loop or recursion never ends.
func (r renderer) step() (string, error) {
	if *r.steps--; *r.steps < 0 {
		return "", fmt.Errorf("it takes more than %d steps: look for a loop or a recursion that does not end", maxSteps)
	}
	return "", nil
}

// countSteps inserts a step at the beginning of each block of a template.
func countSteps(block *parse.ListNode, step parse.Node) {
	if block == nil {
		return
	}
	for _, node := range block.Nodes {
		var branch *parse.BranchNode
		switch node := node.(type) {
		case *parse.RangeNode:
			branch = &node.BranchNode
		case *parse.IfNode:
			branch = &node.BranchNode
		case *parse.WithNode:
			branch = &node.BranchNode
		default:
			continue
		}
		countSteps(branch.List, step)
		countSteps(branch.ElseList, step)
	}
	block.Nodes = slices.Insert(block.Nodes, 0, step)
}

// aStep returns a template node that calls stepFunction.
func aStep() parse.Node {
	none := template.FuncMap{stepFunction: func() string { return "" }}
	return template.Must(template.New("").Funcs(none).Parse("{{" + stepFunction + "}}")).Root.Nodes[0]
}

// functions returns the functions that templates can call besides Go's own functions.
func functions() template.FuncMap {
	return template.FuncMap{
		"json": func(v any) (string, error) {
			b, err := asJSON(v)
			return string(b), err
		},
		"text":  firstOf,
		"slack": strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", "'").Replace,
		"plain": strings.NewReplacer("[", "(", "]", ")").Replace,
	}
}

// asJSON encodes a value as JSON. It does not escape < and >.
func asJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// firstOf returns at most n bytes of a string, with control characters replaced by spaces.
func firstOf(n int, s string) string {
	return truncate.Short(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s), n)
}

// render returns the body of a request.
func (r renderer) render(m Message) ([]byte, error) {
	if r.template == nil {
		return asJSON(m)
	}
	*r.steps = maxSteps
	b := &bounded{left: maxBodySize}
	if err := r.template.Execute(b, m); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// bounded is a buffer that does not grow beyond a limit.
type bounded struct {
	bytes.Buffer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, fmt.Errorf("the body would have more than %d bytes", maxBodySize)
	}
	return b.Buffer.Write(p)
}

// example returns a message with every kind of value. Templates are checked with this
// message at the start.
func example() Message {
	events := []Event{
		{
			Name: GateOpened, Time: time.Unix(0, 0), Body: `gate of "checkout" <1> & 2 opened`,
			Resource:   []attribute.KeyValue{attribute.String(attr.ServiceName, `"checkout"`)},
			Attributes: []attribute.KeyValue{attribute.String(attr.Unit, "4f1c"), attribute.Float64(attr.TriggerValue, 93.5)},
		},
		{Name: ProfileWritten, Time: time.Unix(0, 0), Attributes: []attribute.KeyValue{attribute.StringSlice(attr.ProfileFunctions, []string{"main.work 41.2%"})}},
	}
	return messageOf(events, 3)
}
