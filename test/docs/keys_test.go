// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.yaml.in/yaml/v3"

	"github.com/hotprofile/hotprofile/exporter/consoleexporter"
	"github.com/hotprofile/hotprofile/exporter/pprofexporter"
	"github.com/hotprofile/hotprofile/extension/consoleextension"
	"github.com/hotprofile/hotprofile/extension/hotunitsextension"
	"github.com/hotprofile/hotprofile/extension/inlineattributesextension"
	"github.com/hotprofile/hotprofile/processor/cputriggerprocessor"
	"github.com/hotprofile/hotprofile/receiver/cpuprofilerreceiver"
	"github.com/hotprofile/hotprofile/receiver/hotunitsreceiver"
)

// keys are the keys of a configuration in the
// notation of the READMEs, such as targets[].pid.
type keys map[string]bool

// configKeys returns the keys that a configuration defines and the keys that it inherits
// from the collector. A README or a schema may list inherited keys, but does not have to.
func configKeys(config any) (own, inherited keys) {
	own, inherited = keys{}, keys{}
	collect(reflect.TypeOf(config).Elem(), "", true, own, inherited)
	return own, inherited
}

func collect(of reflect.Type, prefix string, ours bool, own, inherited keys) {
	for i := range of.NumField() {
		field := of.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("mapstructure"), ",")
		if !field.IsExported() || name == "-" {
			continue
		}
		inner, path := structOf(field.Type)
		foreign := inner != nil && (!strings.HasPrefix(inner.PkgPath(), "github.com/hotprofile/") || strings.HasSuffix(inner.PkgPath(), "/internal/metadata"))
		if strings.Contains(options, "squash") {
			collect(inner, prefix, ours && !foreign, own, inherited)
			continue
		}
		if name == "" {
			continue
		}
		if ours {
			own[prefix+name] = true
		} else {
			inherited[prefix+name] = true
		}
		if inner != nil && inner.NumField() > 0 && (ours || !foreign) {
			collect(inner, prefix+name+path+".", ours && !foreign, own, inherited)
		}
	}
}

// structOf returns the structure that a field contains, and the path to this structure in
// the notation of keys. It returns nil if the field contains no structure.
func structOf(of reflect.Type) (inner reflect.Type, path string) {
	switch of.Kind() {
	case reflect.Pointer:
		return structOf(of.Elem())
	case reflect.Slice:
		inner, path = structOf(of.Elem())
		return inner, "[]" + path
	case reflect.Struct:
		if get, ok := reflect.PointerTo(of).MethodByName("GetOrInsertDefault"); ok { // an optional value of configoptional
			return structOf(get.Type.Out(0))
		}
		return of, ""
	}
	return nil, ""
}

// schemaKeys returns the keys in a component's config.schema.yaml.
func schemaKeys(t *testing.T, dir string) keys {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, dir, "config.schema.yaml"))
	require.NoError(t, err)
	var schema map[string]any
	require.NoError(t, yaml.Unmarshal(text, &schema))
	definitions, _ := schema["$defs"].(map[string]any)
	found := keys{}
	var walk func(node any, prefix string)
	walk = func(node any, prefix string) {
		at, ok := node.(map[string]any)
		if !ok {
			return
		}
		if ref, ok := at["$ref"].(string); ok {
			walk(definitions[strings.TrimPrefix(ref, "#/$defs/")], prefix)
		}
		if properties, ok := at["properties"].(map[string]any); ok {
			for name, property := range properties {
				if prefix != "" {
					name = prefix + "." + name
				}
				found[name] = true
				walk(property, name)
			}
		}
		walk(at["items"], prefix+"[]")
		for _, several := range []string{"anyOf", "oneOf", "allOf"} {
			of, _ := at[several].([]any)
			for _, one := range of {
				walk(one, prefix)
			}
		}
	}
	walk(schema, "")
	return found
}

var quoted = regexp.MustCompile("`([a-z0-9_.\\[\\]]+)`")

// readmeKeys returns the keys in the README tables that begin with "| key |". The
// Nth table describes keys below the Nth prefix. A row about a block may name the
// keys of the block in its text.
func readmeKeys(t *testing.T, dir string, known func(string) bool, prefixes []string) keys {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, dir, "README.md"))
	require.NoError(t, err)
	found := keys{}
	table, in := -1, false
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "| key |"):
			table, in = table+1, true
			require.Less(t, table, len(prefixes), "%s/README.md has a table of keys that this test does not know", dir)
		case !strings.HasPrefix(line, "|"):
			in = false
		case in:
			cells := strings.SplitN(line, "|", 3)
			for _, key := range quoted.FindAllStringSubmatch(cells[1], -1) {
				key := prefixes[table] + key[1]
				found[key] = true
				for _, inner := range quoted.FindAllStringSubmatch(cells[2], -1) {
					if inner := key + "." + inner[1]; known(inner) {
						found[inner] = true
					}
				}
			}
		}
	}
	require.Equal(t, len(prefixes), table+1, "tables of keys in %s/README.md", dir)
	return found
}

func TestREADMEsAndSchemasHaveEveryKeyAndNoOther(t *testing.T) {
	components := []struct {
		dir     string
		factory component.Factory
		tables  []string // the prefixes of the README's tables of keys
	}{
		{"receiver/cpuprofilerreceiver", cpuprofilerreceiver.NewFactory(), []string{""}},
		{"receiver/hotunitsreceiver", hotunitsreceiver.NewFactory(), []string{""}},
		{"processor/cputriggerprocessor", cputriggerprocessor.NewFactory(), []string{"", "policies[].", "policies[].any_of[].", "budgets."}},
		{"exporter/consoleexporter", consoleexporter.NewFactory(), []string{""}},
		{"exporter/pprofexporter", pprofexporter.NewFactory(), []string{""}},
		{"extension/consoleextension", consoleextension.NewFactory(), []string{""}},
		{"extension/hotunitsextension", hotunitsextension.NewFactory(), []string{"", "webhooks[]."}},
		{"extension/inlineattributesextension", inlineattributesextension.NewFactory(), []string{""}},
	}
	for _, c := range components {
		t.Run(c.dir, func(t *testing.T) {
			own, inherited := configKeys(c.factory.CreateDefaultConfig())
			if len(c.tables) > 0 {
				require.NotEmpty(t, own)
			}
			known := func(key string) bool { return own[key] || inherited[key] }
			schema := schemaKeys(t, c.dir)
			readme := readmeKeys(t, c.dir, known, c.tables)
			for _, key := range slices.Sorted(maps.Keys(own)) {
				assert.True(t, schema[key], "config.schema.yaml lacks %s", key)
				// The README describes this block by a reference to targets[].
				described := strings.Replace(key, "pprof_endpoints[].target.", "targets[].", 1)
				ofBlock := func(other string) bool { return strings.HasPrefix(other, key+".") }
				if !slices.ContainsFunc(slices.Collect(maps.Keys(readme)), ofBlock) {
					assert.True(t, readme[described], "README.md lacks %s", key)
				}
			}
			for _, key := range slices.Sorted(maps.Keys(schema)) {
				assert.True(t, known(key), "config.schema.yaml has %s, which is no key", key)
			}
			for _, key := range slices.Sorted(maps.Keys(readme)) {
				assert.True(t, known(key), "README.md has %s, which is no key", key)
			}
		})
	}
}
