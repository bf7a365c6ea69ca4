// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package agreement

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var epoch = time.Unix(1e9, 0)

// points returns readings of a unit that uses half a core until
// second 10 and two cores afterwards.
func points(at ...float64) (all [][]Point) {
	for _, s := range at {
		used := 0.5*min(s, 10) + 2*max(0, s-10)
		all = append(all, []Point{{At: epoch.Add(seconds(s)), Num: used, Den: s}})
	}
	return all
}

func TestRange(t *testing.T) {
	for name, c := range map[string]struct {
		m         Measurement
		low, high float64
	}{
		"exact instants":                   {Measurement{first: points(1, 1), second: points(5, 5)}, 0.5, 0.5},
		"it may have read before or after": {Measurement{first: points(1, 1.5), second: points(5, 5.5)}, (2.5 - 0.75) / 4.5, (2.75 - 0.5) / 3.5},
		"between two of ours":              {Measurement{first: points(1, 1.25, 1.5), second: points(5, 5)}, (2.5 - 0.75) / 3.75, (2.5 - 0.625) / 3.5},
		"it waited by itself":              {Measurement{least: 9 * time.Second, first: points(1, 1), second: points(5, 9, 10.5, 11)}, (4.5 - 0.5) / 9.5, (6 - 0.5) / 8.0},
	} {
		t.Run(name, func(t *testing.T) {
			low, high := c.m.Range(0)
			require.InDelta(t, c.low, low, 1e-9)
			require.InDelta(t, c.high, high, 1e-9)
		})
	}
}

func TestBound(t *testing.T) {
	b := Bound{Tick: 4 * time.Millisecond, CPUs: 2, Limit: 0.5}
	f := Figures{Total: 0.5, Elapsed: 4 * time.Second}
	require.InDelta(t, 0.005+0.008/4, b.Total(f), 1e-12, "a point of the limit and a tick per CPU")
	f.TotalStep, f.SplitStep, f.Clock = 20*time.Millisecond, 10*time.Millisecond, 0.01
	require.InDelta(t, 0.005+0.028/4+0.005, b.Total(f), 1e-12)
	require.InDelta(t, 0.005+0.028/4+0.005, b.Split(f, 10*time.Millisecond), 1e-12)
	require.Zero(t, Apart(1, 1, 2))
	require.InDelta(t, 0.5, Apart(0.5, 1, 2), 1e-12)
	require.InDelta(t, 0.5, Apart(2.5, 1, 2), 1e-12)
}

func TestMeasure(t *testing.T) {
	broken := errors.New("broken")
	ours := func() ([]Point, error) { return []Point{{At: time.Now()}}, nil }
	tool := func(start, finish error) Tool {
		return Tool{Name: "it", Start: func() (func() (Figures, error), error) {
			return func() (Figures, error) { return Figures{Total: 1}, finish }, start
		}}
	}
	all, err := Measure(ours, []Tool{tool(nil, nil), tool(nil, nil)}, time.Millisecond)
	require.NoError(t, err)
	require.Len(t, all, 2)
	for _, m := range all {
		require.InDelta(t, 1, m.Theirs.Total, 0)
		require.GreaterOrEqual(t, len(m.first), 2)
		require.GreaterOrEqual(t, len(m.second), 2)
		require.GreaterOrEqual(t, m.second[0][0].At.Sub(m.first[1][0].At), time.Millisecond)
	}
	for _, bad := range []Tool{tool(broken, nil), tool(nil, broken)} {
		_, err := Measure(ours, []Tool{bad}, 0)
		require.ErrorIs(t, err, broken)
	}
	_, err = Measure(func() ([]Point, error) { return nil, broken }, []Tool{tool(nil, nil)}, 0)
	require.ErrorIs(t, err, broken)
}
