// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package fidelity_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/test/fidelity"
)

func TestWhatPerfScriptPrintsIsRead(t *testing.T) {
	p, err := fidelity.OfScript(strings.NewReader("27661 \n" +
		"\tffffffff81d35f77 read_zero\n" +
		"\t            1593 sort\n" +
		"\t          46b2e0 slices.sort[go.shape.struct { main.a uint32 }]\n" +
		"\n" +
		"27660 \n" +
		"\t            1439 [unknown]\n"))
	require.NoError(t, err)
	require.Equal(t, fidelity.Profile{Samples: []fidelity.Sample{
		{Count: 1, Stack: []fidelity.Frame{
			{Functions: []string{"read_zero"}, Kernel: true},
			{Functions: []string{"sort"}},
			{Functions: []string{"slices.sort[go.shape.struct { main.a uint32 }]"}},
		}},
		{Count: 1, Stack: []fidelity.Frame{{Functions: []string{fidelity.Unknown}}}},
	}}, p)
	require.Equal(t, map[string]int{"sort": 1, fidelity.Unknown: 1}, fidelity.Self(p.User()))

	_, err = fidelity.OfScript(strings.NewReader("1 \n\tnonsense here\n"))
	require.ErrorContains(t, err, "no frame")
}

func TestCountsAreByStackAndName(t *testing.T) {
	frame := func(names ...string) fidelity.Frame { return fidelity.Frame{Functions: names} }
	p := fidelity.Profile{Samples: []fidelity.Sample{
		{Stack: []fidelity.Frame{frame("leaf", "f"), frame("f"), frame("main")}, Count: 3},
		{Stack: []fidelity.Frame{frame("main")}, Count: 1},
	}}
	require.Equal(t, 4, p.Total())
	require.Equal(t, map[string]int{"leaf": 3, "main": 1}, fidelity.Self(p))
	require.Equal(t, map[string]int{"leaf": 3, "f": 3, "main": 4}, fidelity.Cumulative(p))
	require.Equal(t, map[string]int{"leaf < f": 3}, fidelity.Inlined(p))
	require.Equal(t, map[string]int{"f": 3, "main": 1}, fidelity.Self(p.Physical()))
	require.Equal(t, map[string]int{"main": 1}, fidelity.Cumulative(p.Without("leaf")))
}
