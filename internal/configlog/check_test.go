// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package configlog

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/confmap"
)

type inner struct {
	Name  string        `mapstructure:"name"`
	Every time.Duration `mapstructure:"every"`
	Count int           `mapstructure:"count"`
}

type checked struct {
	inner    `mapstructure:",squash"`
	List     []inner                                          `mapstructure:"list"`
	Optional configoptional.Optional[inner]                   `mapstructure:"optional"`
	HTTP     configoptional.Optional[confighttp.ServerConfig] `mapstructure:"http"`
	Pointer  *inner                                           `mapstructure:"pointer"`
	Labels   map[string]int                                   `mapstructure:"labels"`
}

func TestGone(t *testing.T) {
	gone := map[string]string{"name": "a is used", "optional::every": "b is used", "list::count": "c is used"}
	check := func(m map[string]any) error { return Gone(confmap.NewFromStringMap(m), gone) }
	require.NoError(t, check(map[string]any{"count": 1, "optional": map[string]any{"count": 1}, "list": []any{nil, map[string]any{"every": "1s"}}}))
	require.NoError(t, check(map[string]any{"optional": "every", "list": "count"}))
	for fault, m := range map[string]map[string]any{
		"name: this key is gone, remove it: a is used":           {"name": nil},
		"optional.every: this key is gone, remove it: b is used": {"optional": map[string]any{"every": "1s"}},
		"list[1].count: this key is gone, remove it: c is used":  {"list": []any{map[string]any{"every": "1s"}, map[string]any{"count": 1}}},
	} {
		require.EqualError(t, check(m), fault)
	}
}

func TestCheck(t *testing.T) {
	check := func(m map[string]any) error { return Check(confmap.NewFromStringMap(m), checked{}) }
	require.NoError(t, check(map[string]any{
		"every": "30s", "count": 30, "list": []any{map[string]any{"every": 0}, nil}, "optional": map[string]any{"enabled": true},
		"labels": map[string]any{"every": 3}, "http": map[string]any{"endpoint": "a", "tls": map[string]any{"cert_file": "b"}, "read_timeout": "1s"},
	}))
	for fault, m := range map[string]map[string]any{
		"every: 30 has no unit: write 30s":                             {"every": 30},
		"list[1].every: 5":                                             {"list": []any{map[string]any{"every": "1s"}, map[string]any{"every": 5}}},
		"optional.every: 1.5":                                          {"optional": map[string]any{"every": 1.5}},
		"pointer.every: -1":                                            {"pointer": map[string]any{"every": -1}},
		`evry: unknown key: did you mean "every"?`:                     {"evry": "1s"},
		`list[0].cuont: unknown key of "shop": did you mean "count"?`:  {"list": []any{map[string]any{"name": "shop", "cuont": 1}}},
		`pointer.period: unknown key: the keys are count, every, name`: {"pointer": map[string]any{"period": 1}},
		`http.read_timeuot: unknown key: did you mean "read_timeout"?`: {"http": map[string]any{"read_timeuot": "1s"}},
		"http.read_timeout: 3 has no unit":                             {"http": map[string]any{"read_timeout": 3}},
	} {
		require.ErrorContains(t, check(m), fault)
	}
}
