// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
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

// The report in a document is between these two lines.
const (
	markerBegin = "<!-- bench -->"
	markerEnd   = "<!-- /bench -->"
)

// updateFile replaces the report in a document.
func updateFile(file, report string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(text), markerBegin+"\n")
	_, after, ends := strings.Cut(rest, markerEnd)
	if !found || !ends {
		return errors.New(file + " has no lines " + markerBegin + " and " + markerEnd + " to write the report between")
	}
	return os.WriteFile(file, []byte(before+markerBegin+"\n"+report+markerEnd+after), 0o600)
}
