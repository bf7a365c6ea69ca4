// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const page = "../../docs/trigger-accuracy.md"

// TestAccuracy runs all algorithms on the corpus. It checks that the
// results match the page in the docs.
func TestAccuracy(t *testing.T) {
	if testing.Short() {
		t.Skip("plays the corpus several hundred times")
	}
	all := corpus(t)
	var tuning, scoring []*trace
	for _, tr := range all {
		if tr.ForTuning() {
			tuning = append(tuning, tr)
		} else {
			scoring = append(scoring, tr)
		}
	}

	one := oursSets()
	oneBest := one[best(algorithms(one), tuning)]
	both := append([]ours{oneBest}, withThrottling(oneBest)...)
	bothBest := both[1+best(algorithms(both[1:]), tuning)]
	ways := []struct {
		name           string
		standard, best algorithm
	}{
		{"hotprofile, one policy", oursDefault.algorithm(), oneBest.algorithm()},
		{"hotprofile, both policies", oursBothDefault.algorithm(), bothBest.algorithm()},
		{"30 s records", recordsDefault.algorithm(), bestOf(algorithms(recordsSets()), tuning)},
		{"lifetime average", lifetimeDefault.algorithm(), bestOf(algorithms(lifetimeSets()), tuning)},
		{"absolute and jump", jumpDefault.algorithm(), bestOf(algorithms(jumpSets()), tuning)},
	}

	var scored, defaults strings.Builder
	scored.WriteString(tableHead)
	defaults.WriteString(tableHead)
	scored.WriteString(row("hotprofile, all policies", "default: "+oursAllDefault.name(), run(oursAllDefault.algorithm(), scoring)))
	defaults.WriteString(row("hotprofile, all policies", "default: "+oursAllDefault.name(), run(oursAllDefault.algorithm(), all)))
	for _, w := range ways {
		scored.WriteString(row(w.name, "default: "+w.standard.name, run(w.standard, scoring)))
		defaults.WriteString(row(w.name, "default: "+w.standard.name, run(w.standard, all)))
	}
	onPage := brief(scored.String()) // results.txt also has the best settings
	for _, w := range ways {
		scored.WriteString(row(w.name, "best: "+w.best.name, run(w.best, scoring)))
	}
	var phased strings.Builder
	phased.WriteString("| way | parameters | hits, mean (least to most) | false alarms, mean (least to most) |\n| --- | --- | --- | --- |\n")
	for _, w := range ways {
		phased.WriteString(phasedRow(w.name, "default", w.standard, scoring))
	}
	for _, w := range ways {
		phased.WriteString(phasedRow(w.name, "best", w.best, scoring))
	}
	var results strings.Builder
	for _, tr := range all {
		fmt.Fprintf(&results, "%s: %s\n", tr.Name, tr.labels)
		for _, w := range ways {
			fmt.Fprintf(&results, "  %s: default %v, best %v\n", w.name, w.standard.play(tr), w.best.play(tr))
		}
	}
	golden(t, "results.txt", strings.Join([]string{
		"On the half for scoring:\n", scored.String(),
		"At the defaults, on all traces:\n", defaults.String(),
		"With loops that begin at each of 30 seconds before the trace, on the half for scoring:\n", phased.String(),
		"Lost at the defaults, on all traces:\n", lossTable(t, run(oursDefault.algorithm(), all), run(oursAllDefault.algorithm(), all)),
		bestLosses(run(oneBest.algorithm(), scoring), run(bothBest.algorithm(), scoring)),
		"The labels of each trace, and the openings of each method in seconds:\n", results.String(),
	}, "\n"))

	text, err := os.ReadFile(page)
	require.NoError(t, err)
	want := string(text)
	for _, section := range []struct{ name, text string }{
		{"corpus", describe(all, tuning, scoring)},
		{"scored", onPage},
	} {
		want = replaceSection(t, want, section.name, section.text)
	}
	golden(t, page, want)
}

func bestOf(of []algorithm, on []*trace) algorithm { return of[best(of, on)] }

func describe(all, tuning, scoring []*trace) string {
	recorded := 0
	for _, tr := range all {
		if tr.Recorded {
			recorded++
		}
	}
	return fmt.Sprintf("%d traces, %d recorded and %d synthetic. Half for tuning: %s. Half for scoring: %s.\n",
		len(all), recorded, len(all)-recorded, halfOf(tuning), halfOf(scoring))
}

func halfOf(half []*trace) string {
	episodes, recorded := 0, 0
	for _, tr := range half {
		episodes += len(tr.hot)
		if tr.Recorded {
			recorded++
		}
	}
	return fmt.Sprintf("%d traces (%d recorded) with %d hot episodes", len(half), recorded, episodes)
}

const tableHead = "| way | parameters | hits of episodes (95 %) | false alarms | traces with one (95 %) | latency, median (range) | hits with 10 s kept | first opening right, wrong, neither |\n" +
	"| --- | --- | --- | --- | --- | --- | --- | --- |\n"

func row(name, parameters string, s *score) string {
	latency := "–"
	if median, least, most := s.medianLatency(); !math.IsNaN(median) {
		latency = fmt.Sprintf("%g s (%g to %g)", median, least, most)
	}
	return fmt.Sprintf("| %s | %s | %s | %d | %s | %s | %d of %d | %d, %d, %d |\n", name, parameters,
		rate(s.hits, s.episodes), s.falseAlarms, rate(s.alarmed, s.cool), latency,
		s.keptHits, s.episodes, s.right, s.wrong, s.neither)
}

// brief removes the columns that only results.txt has.
func brief(table string) string {
	var b strings.Builder
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		b.WriteString(strings.Join([]string{"", cells[1], cells[3], cells[4], cells[6], "\n"}, "|"))
	}
	return b.String()
}

// phasedRow scores an algorithm for each of 30 phases. In phase n, the algorithm's loops
// begin n seconds before the traces.
func phasedRow(name, parameters string, a algorithm, on []*trace) string {
	const phases = 30
	var hits, falseAlarms [phases]int
	episodes := 0
	for phase := range phases {
		var shifted []*trace
		for _, tr := range on {
			other := *tr
			other.phase = phase
			shifted = append(shifted, &other)
		}
		s := run(a, shifted)
		hits[phase], falseAlarms[phase], episodes = s.hits, s.falseAlarms, s.episodes
	}
	spread := func(n [phases]int) (mean float64, least, most int) {
		for _, v := range n {
			mean += float64(v) / phases
		}
		return mean, slices.Min(n[:]), slices.Max(n[:])
	}
	h, hLeast, hMost := spread(hits)
	f, fLeast, fMost := spread(falseAlarms)
	return fmt.Sprintf("| %s | %s | %.1f (%d to %d) of %d | %.1f (%d to %d) |\n", name, parameters, h, hLeast, hMost, episodes, f, fLeast, fMost)
}

func rate(k, n int) string {
	low, high := wilson(k, n)
	return fmt.Sprintf("%d of %d (%.0f to %.0f %%)", k, n, 100*low, 100*high)
}

// lossTable lists each trace on which our defaults made a mistake, with the reason from
// losses.txt. There must be a reason for each of these traces and for no other trace.
func lossTable(t *testing.T, one, both *score) string {
	why := reasons(t)
	byTrace := map[string]*[2]loss{}
	for i, s := range []*score{one, both} {
		for _, l := range s.losses {
			if byTrace[l.trace.Name] == nil {
				byTrace[l.trace.Name] = &[2]loss{}
			}
			byTrace[l.trace.Name][i] = l
		}
	}
	var b strings.Builder
	b.WriteString("| trace | one policy | all policies | why |\n| --- | --- | --- | --- |\n")
	for _, s := range schedules(t) {
		l := byTrace[s.Name]
		if l == nil {
			require.NotContains(t, why, s.Name, "losses.txt explains a trace on which nothing was lost")
			continue
		}
		if !*update {
			require.Contains(t, why, s.Name, "losses.txt does not say why ours lost on this trace")
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", s.Name, l[0], l[1], why[s.Name])
	}
	return b.String()
}

func (l loss) String() string {
	var parts []string
	if len(l.missed) > 0 {
		parts = append(parts, "missed at "+list(l.missed))
	}
	if len(l.falseAlarms) > 0 {
		parts = append(parts, "false at "+list(l.falseAlarms))
	}
	if len(parts) == 0 {
		return "–"
	}
	return strings.Join(parts, "; ")
}

func list(seconds []int) string {
	var parts []string
	for _, s := range seconds {
		parts = append(parts, fmt.Sprint(s))
	}
	return strings.Join(parts, ", ") + " s"
}

func bestLosses(one, both *score) string {
	say := func(s *score) string {
		if len(s.losses) == 0 {
			return "nothing"
		}
		var parts []string
		for _, l := range s.losses {
			parts = append(parts, fmt.Sprintf("%s (%s)", l.trace.Name, l))
		}
		return strings.Join(parts, ", ")
	}
	return fmt.Sprintf("At the best parameters, on the half for scoring, one policy lost: %s. Both: %s.\n", say(one), say(both))
}

// reasons reads losses.txt. Each line is the name of a trace, a colon and a reason.
func reasons(t *testing.T) map[string]string {
	text, err := os.ReadFile("losses.txt")
	require.NoError(t, err)
	why := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, reason, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if ok {
			why[name] = reason
		}
	}
	return why
}

// replaceSection replaces the text between the two comments that name a section.
func replaceSection(t *testing.T, page, name, text string) string {
	begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->"
	before, rest, ok := strings.Cut(page, begin)
	require.True(t, ok, "the page has no section %q", name)
	_, after, ok := strings.Cut(rest, end)
	require.True(t, ok, "the section %q has no end", name)
	return before + begin + "\n" + text + "\n" + end + after
}
