// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package configlog

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/config/configopaque"
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
