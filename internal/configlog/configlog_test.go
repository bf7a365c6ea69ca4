// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package configlog

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/config/configopaque"
	"go.opentelemetry.io/collector/confmap"
)

func TestMap(t *testing.T) {
	type inner struct {
		Every time.Duration `mapstructure:"every"`
	}
	got, err := Map(&struct {
		Interval time.Duration       `mapstructure:"interval"`
		List     []inner             `mapstructure:"list"`
		Password configopaque.String `mapstructure:"password"`
		Count    int                 `mapstructure:"count"`
	}{Interval: 5 * time.Second, List: []inner{{Every: time.Hour}}, Password: "secret", Count: 3})
	require.NoError(t, err)
	require.Equal(t, "5s", got["interval"])
	require.Equal(t, []any{map[string]any{"every": "1h0m0s"}}, got["list"])
	require.EqualValues(t, 3, got["count"])
	require.NotContains(t, fmt.Sprint(got), "secret")

	_, err = Map(func() {})
	require.Error(t, err)
}

func TestCheckKeys(t *testing.T) {
	type inherited struct {
		Endpoint string `mapstructure:"endpoint"`
	}
	type config struct {
		Inherited inherited `mapstructure:",squash"`
		Socket    string    `mapstructure:"socket"`
	}
	check := func(m map[string]any, own any) error {
		return CheckKeys(confmap.NewFromStringMap(m), &inherited{}, own)
	}
	require.NoError(t, check(map[string]any{"endpoint": "a", "socket": "b"}, config{}))
	require.ErrorContains(t, check(map[string]any{"endpoint": "a", "sockets": "b"}, config{}), "sockets")
	require.ErrorContains(t, check(map[string]any{"endpoint": "a", "socket": "b"}, nil), "socket")
}
