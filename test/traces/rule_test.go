// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const quiet = "# Something.\nsynthetic\nseconds 120\ncpus 4\nthreads 4\nlimit 1\nage 1h at 0.1\nload 0.1\n"

func parse(t testing.TB, text string) *Schedule {
	t.Helper()
	s, err := ParseSchedule("x", text)
	require.NoError(t, err)
	return s
}

func TestRuleOfLabels(t *testing.T) {
	for _, c := range []struct{ name, schedule, want string }{
		{"nothing happens", quiet, "cool 0-120"},
		{"a spike of five seconds is cool", quiet + "load 1 from 50 to 55", "cool 0-120"},
		{"more than that is grey", quiet + "load 1 from 50 to 56", "cool 0-50, grey 50-56, cool 56-120"},
		{"fifteen seconds are hot", quiet + "load 1 from 50 to 65", "cool 0-50, hot 50-65, cool 65-120"},
		{"a load of 90 % is hot", quiet + "load 0.8 from 50 to 80", "cool 0-50, hot 50-80, cool 80-120"},
		{"a load of 80 % is grey", quiet + "load 0.7 from 50 to 80", "cool 0-50, grey 50-80, cool 80-120"},
		{"a load of 70 % is cool", quiet + "load 0.6 from 50 to 80", "cool 0-120"},
		{"a short dip does not end an episode", quiet + "load 1 from 50 to 65\nload 1 from 67 to 80", "cool 0-50, hot 50-80, cool 80-120"},
		{"a longer one does", quiet + "load 1 from 50 to 65\nload 1 from 68 to 80", "cool 0-50, hot 50-65, cool 65-68, grey 68-80, cool 80-120"},
		{"frequent short runs are grey", quiet + "load 1 from 60 to 120 for 5s every 10s", "cool 0-60, grey 60-115, cool 115-120"},
		{"seldom ones are not", quiet + "load 1 from 60 to 120 for 5s every 20s", "cool 0-120"},
		{"the first half minute of a life is grey", strings.Replace(quiet, "age 1h at 0.1", "", 1) + "load 1 from 10 to 60", "grey 0-30, hot 30-60, cool 60-120"},
		{"so is that after a restart", quiet + "load 1 from 40 to 80\ndown 50 to 60", "cool 0-40, grey 40-90, cool 90-120"},
		{"a stall in half of the periods is hot", quiet + "load 3.8 from 50 to 80 for 40ms every 200ms", "cool 0-50, hot 50-80, cool 80-120"},
		{"one thread is hot at one core", strings.Replace(quiet, "limit 1", "limit 4\nserial", 1) + "load 0.9 from 50 to 80", "cool 0-50, hot 50-80, cool 80-120"},
		{"many threads are not", strings.Replace(quiet, "limit 1", "limit 4", 1) + "load 0.9 from 50 to 80", "cool 0-120"},
		{"a neighbour changes nothing", strings.Replace(quiet, "limit 1", "parent 1", 1) + "neighbour 1 from 20 to 80", "cool 0-120"},
		{"a lower limit makes the same load hot", quiet + "limit 0.1 from 60", "cool 0-60, hot 60-120"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, LabelsOf(parse(t, c.schedule)).String())
		})
	}
}

func TestScheduleFaults(t *testing.T) {
	for _, c := range []struct{ name, schedule, want string }{
		{"kind", "# a\nseconds 60\ncpus 1\nload 1", "recorded or synthetic"},
		{"about", "synthetic\nseconds 60\ncpus 1\nload 1", "what happens"},
		{"too long", strings.Replace(quiet, "120", "100000", 1), "from 60 to 900"},
		{"key", quiet + "laod 1", "unknown key"},
		{"word", quiet + "load 1 form 3", "unknown word"},
		{"number", quiet + "load x", "invalid syntax"},
		{"outside", quiet + "load 1 from 10 to 500", "not in the trace"},
		{"threads", quiet + "load 5", "more cores than it has threads"},
		{"order", quiet + "limit 2 from 50\nlimit 1 from 40", "order"},
		{"neighbour", quiet + "neighbour 1", "parent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseSchedule("x", c.schedule)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestTraceIsReadAsWritten(t *testing.T) {
	header, rows := Synthesize(parse(t, quiet+"load 3 from 50 to 70\ndown 80 to 90\nmissing 20 to 30"))
	var b bytes.Buffer
	require.NoError(t, WriteTrace(&b, header, rows))
	readHeader, read, err := ReadTrace(&b)
	require.NoError(t, err)
	require.Equal(t, header, readHeader)
	require.Len(t, read, len(rows))
	require.Len(t, read, 121-10-10)
	for i := range rows {
		require.InDelta(t, rows[i].CPU, read[i].CPU, 1e-6)
		require.Equal(t, rows[i].Throttled, read[i].Throttled)
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add("# a\n" + columns + "\n0,0,1,0,0\n1,0.5,1,10,2\n")
	f.Fuzz(func(t *testing.T, text string) {
		_, rows, err := ReadTrace(strings.NewReader(text))
		if err != nil {
			return
		}
		for i := 1; i < len(rows); i++ {
			require.Greater(t, rows[i].At, rows[i-1].At)
		}
	})
}

func FuzzParseSchedule(f *testing.F) {
	f.Add(quiet + "load 0.1..0.5 from 3 to 60 for 40ms every 1s\ndown 70 to 80\nnoise 20%")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSchedule("x", text)
		if err != nil || s.Threads > 1000 {
			return
		}
		require.Len(t, LabelsOf(s), s.Seconds)
	})
}
