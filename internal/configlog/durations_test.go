// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package configlog

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/confmap"
)

func TestDurationsNeedAUnit(t *testing.T) {
	type inner struct {
		Every time.Duration `mapstructure:"every"`
		Count int           `mapstructure:"count"`
	}
	type config struct {
		inner    `mapstructure:",squash"`
		List     []inner                        `mapstructure:"list"`
		Optional configoptional.Optional[inner] `mapstructure:"optional"`
		Pointer  *inner                         `mapstructure:"pointer"`
		Labels   map[string]int                 `mapstructure:"labels"`
	}
	check := func(m map[string]any) error { return CheckDurations(confmap.NewFromStringMap(m), config{}) }
	require.NoError(t, check(map[string]any{
		"every": "30s", "count": 30, "list": []any{map[string]any{"every": 0}, nil}, "optional": nil, "labels": map[string]any{"every": 3}, "other": 1,
	}))
	for key, m := range map[string]map[string]any{
		"every: 30 has no unit: write 30s": {"every": 30},
		"list[1].every: 5":                 {"list": []any{map[string]any{"every": "1s"}, map[string]any{"every": 5}}},
		"optional.every: 1.5":              {"optional": map[string]any{"every": 1.5}},
		"pointer.every: -1":                {"pointer": map[string]any{"every": -1}},
	} {
		require.ErrorContains(t, check(m), key)
	}
}
