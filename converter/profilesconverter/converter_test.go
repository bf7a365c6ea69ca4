// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package profilesconverter

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/featuregate"
)

func TestTheGateIsOpenForPipelinesOfProfiles(t *testing.T) {
	for name, c := range map[string]struct {
		pipelines any
		want      bool
	}{
		"profiles":       {map[string]any{"profiles": nil}, true},
		"named profiles": {map[string]any{"traces": nil, "profiles/hot": nil}, true},
		"others":         {map[string]any{"traces": nil, "logs/profiles": nil}, false},
		"none":           {nil, false},
		"not a map":      {"profiles", false},
	} {
		t.Run(name, func(t *testing.T) {
			gates := featuregate.NewRegistry()
			of := gates.MustRegister(gate, featuregate.StageAlpha)
			conf := confmap.NewFromStringMap(map[string]any{"service": map[string]any{"pipelines": c.pipelines}})
			require.NoError(t, converter{gates}.Convert(t.Context(), conf))
			require.Equal(t, c.want, of.IsEnabled())
		})
	}
	require.Error(t, converter{featuregate.NewRegistry()}.Convert(t.Context(), confmap.NewFromStringMap(map[string]any{
		"service": map[string]any{"pipelines": map[string]any{"profiles": nil}},
	})), "a collector without the gate")
	require.NotNil(t, NewFactory().Create(confmap.ConverterSettings{}))
}
