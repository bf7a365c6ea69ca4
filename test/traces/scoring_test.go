// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// imagined returns the trace that the text of a schedule
// describes. The trace is not in a file.
func imagined(t *testing.T, text string) *trace {
	s := parse(t, text)
	tr := &trace{Schedule: s, labels: LabelsOf(s), seconds: make([]second, s.Seconds+1)}
	tr.hot = tr.labels.Stretches(Hot)
	_, tr.grey = s.Runs()
	_, rows := Synthesize(s)
	for i := range rows {
		tr.seconds[int(rows[i].At)].row = &rows[i]
	}
	return tr
}

func TestScoring(t *testing.T) {
	tr := imagined(t, quiet+"load 1 from 50 to 70\nload 1 from 90 to 100")
	require.Equal(t, "cool 0-50, hot 50-70, cool 70-90, grey 90-100, cool 100-120", tr.labels.String())
	for _, c := range []struct {
		name                 string
		opened               []int
		hits, kept, false    int
		latency              float64
		right, wrong, neithr int
	}{
		{name: "never", neithr: 1},
		{name: "at once", opened: []int{50}, hits: 1, kept: 1, right: 1},
		{name: "with ten seconds left", opened: []int{60}, hits: 1, kept: 1, latency: 10, right: 1},
		{name: "too late, but what was kept has it", opened: []int{65}, kept: 1, neithr: 1},
		{name: "ten seconds after the end", opened: []int{80}, neithr: 1},
		{name: "later", opened: []int{81}, false: 1, wrong: 1},
		{name: "before, and the profile reaches into it", opened: []int{35}, hits: 1, kept: 1, right: 1},
		{name: "before, and it does not", opened: []int{25}, false: 1, wrong: 1},
		{name: "grey", opened: []int{95}, neithr: 1},
		{name: "just after grey", opened: []int{105}, neithr: 1},
		{name: "well after grey", opened: []int{111}, false: 1, wrong: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s score
			s.add(tr, c.opened)
			require.Equal(t, 1, s.episodes)
			require.Equal(t, c.hits, s.hits, "hits")
			require.Equal(t, c.kept, s.keptHits, "kept")
			require.Equal(t, c.false, s.falseAlarms, "false alarms")
			if c.hits > 0 {
				require.Equal(t, []float64{c.latency}, s.latencies)
			}
			require.Equal(t, []int{c.right, c.wrong, c.neithr}, []int{s.right, s.wrong, s.neither})
		})
	}
}

func TestWilson(t *testing.T) {
	low, high := wilson(8, 10)
	require.InDelta(t, 0.490, low, 0.001)
	require.InDelta(t, 0.943, high, 0.001)
}

// TestOtherWays checks the openings of each of the other algorithms for one load.
func TestOtherWays(t *testing.T) {
	long := imagined(t, "# Hot for good after a minute and a half.\nsynthetic\nseconds 300\ncpus 4\nthreads 2\nlimit 1\nage 1h at 0.05\nload 0.05\nload 1.2 from 98 to 300")
	require.Equal(t, []int{150, 240}, records{80, 30, 5}.algorithm().play(long), "the first record that is all hot ends at 150")
	require.Empty(t, lifetime{80, 10, 5}.algorithm().play(long), "an hour of idling outweighs three minutes")
	require.Equal(t, []int{100, 190, 280}, jump{10, 25, 70, 5}.algorithm().play(long), "the first look at a hot second")

	young := imagined(t, "# Hot from its start.\nsynthetic\nseconds 120\ncpus 4\nthreads 2\nlimit 1\nload 1.2")
	require.Equal(t, []int{5, 95}, lifetime{80, 10, 5}.algorithm().play(young))

	ramp := imagined(t, "# A slow ramp.\nsynthetic\nseconds 600\ncpus 4\nthreads 2\nlimit 1\nage 1h at 0.2\nload 0.2..1 from 0 to 600")
	require.Empty(t, jump{10, 50, 1e6, 5}.algorithm().play(ramp), "no jump, and no absolute value")
}
