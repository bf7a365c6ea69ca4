// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"
)

// figureRow is a line of the summary table.
type figureRow struct {
	what, ours, baseline string
	runs                 int
}

// sum adds a line to the summary table. baseline is "-" if there is no baseline.
func (b *bench) sum(what, ours, baseline, against string, runs int) {
	if baseline != "-" && against != "" {
		baseline += " (" + strings.TrimSpace(against) + ")"
	}
	b.figures = append(b.figures, figureRow{what: what, ours: ours, baseline: baseline, runs: runs})
}

// report returns the whole report in Markdown.
func (b *bench) report(began time.Time, loadAtStart string, missing []string) string {
	var out bytes.Buffer
	hostFacts(&out)
	fmt.Fprintf(&out, "Load average at the start %s, at the end %s; it took %v.\n\n", loadAtStart, loadAverage(), time.Since(began).Round(time.Second))
	for _, m := range missing {
		fmt.Fprintf(&out, "**Not measured:** %s\n\n", m)
	}
	fmt.Fprint(&out, "### In short\n\n")
	t := table{"figure", "hotprofile", "beside", "runs"}
	t.head(&out)
	for _, f := range b.figures {
		t.row(&out, f.what, f.ours, f.baseline, fmt.Sprint(f.runs))
	}
	fmt.Fprintln(&out)
	out.Write(b.sections.Bytes())
	return strings.TrimSpace(out.String()) + "\n"
}

// loadAverage returns the load averages of one, five and fifteen minutes.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 3 {
		return "unknown"
	}
	return strings.Join(fields[:3], " ")
}
