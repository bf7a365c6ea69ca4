// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// forced lists the losses that every soak has to force. If a soak of half an
// hour misses one of these losses, the soak has not tested enough.
var forced = []string{"buffer_full", "rate_limited", "refused", "rejected", "evicted", "gate_shut", "over_budget", "dry_run", "filtered", "shutdown", "killed"}

// report prints the results, with the equation last. It returns an
// error if the equation does not hold or if a bound was exceeded.
func (s *soak) report(w io.Writer) error {
	out, twice, rejected := s.backend.took()
	s.ledger.out, s.ledger.rejected = out, rejected
	ooms, err := s.group.OOMKills()
	faults := append(s.ledger.check(), s.backend.faults()...)
	if err != nil {
		faults = append(faults, err.Error())
	}
	if s.broken != nil {
		faults = append(faults, "the soak ended before its time, and without the counters of its last run the equation cannot hold: "+s.broken.Error())
	}
	faults = append(faults, s.attackFaults()...)
	if ooms > 0 {
		faults = append(faults, fmt.Sprintf("the kernel killed the collector %d times for its memory limit", ooms))
	}
	for _, m := range s.weights {
		bound := func(what string, got, most int64) {
			if got > most {
				faults = append(faults, fmt.Sprintf("%s: %s reached %d, above %d", m.name, what, got, most))
			}
		}
		bound("resident bytes", m.most.rss, memoryLimit)
		bound("goroutines", int64(m.most.goroutines), maxGoroutines)
		bound("descriptors", int64(m.most.descriptors), maxDescriptors)
		if m.last.goroutines > m.warm.goroutines+moreGoroutines && m.warm != (weight{}) {
			faults = append(faults, fmt.Sprintf("%s: from warm to its end goroutines grew from %d to %d", m.name, m.warm.goroutines, m.last.goroutines))
		}
		if m.readings == 0 {
			faults = append(faults, m.name+": the collector could not be weighed once")
		}
	}

	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Fprintf(w, "# %v of faults\n\n", s.length)
	fmt.Fprintf(w, "%d CPUs, load average %s at the end; %v in all, limit of memory %d MiB.\n\n", runtime.NumCPU(),
		strings.Join(strings.Fields(string(load))[:3], " "), time.Since(s.began).Round(time.Second), memoryLimit>>20)
	s.printEntries(w)
	s.printLosses(w, twice)
	s.printWeights(w)
	s.printAttack(w)
	s.printComplaints(w)

	for _, f := range faults {
		fmt.Fprintf(w, "**FAULT**: %s\n\n", f)
	}
	line, _ := s.ledger.equation()
	fmt.Fprintln(w, line)
	if len(faults) > 0 {
		return fmt.Errorf("%d faults: %w", len(faults), errors.New(strings.Join(faults, "; ")))
	}
	return nil
}

func row(w io.Writer, cells ...any) {
	for _, c := range cells {
		fmt.Fprintf(w, "| %v ", c)
	}
	fmt.Fprintln(w, "|")
}

func head(w io.Writer, cells ...any) {
	row(w, cells...)
	fmt.Fprintln(w, strings.Repeat("| --- ", len(cells))+"|")
}

func (s *soak) printEntries(w io.Writer) {
	fmt.Fprint(w, "## Each run of the collector, in events\n\n")
	head(w, "run", "read", "handed on", "decided", "held", "passed", "agrees")
	for i := range s.ledger.entries {
		e := &s.ledger.entries[i]
		agrees := "yes"
		if len(e.check()) > 0 {
			agrees = "**no**"
		}
		row(w, e.name, e.in(), e.sentAccepted+e.handedRefused, total(e.decided), e.held, e.decided["passed"], agrees)
	}
	fmt.Fprintln(w)
}

func (s *soak) printLosses(w io.Writer, twice int64) {
	fmt.Fprint(w, "## What became of what was read, and what never was\n\n")
	head(w, "", "events")
	for _, t := range s.ledger.terms() {
		row(w, t.name, t.n)
	}
	var lost, skipped, enqueue, failed int64
	others, triggers := map[string]int64{}, map[string]int64{}
	for _, e := range s.ledger.entries {
		lost += e.lost
		skipped += e.skipped
		enqueue += e.enqueueFailed
		failed += e.sendFailed
		for name, n := range e.otherLosses {
			others[name] += n
		}
		for name, n := range e.triggers {
			triggers["triggers: "+name] += n
		}
	}
	row(w, "came again (a queue delivers at least once)", twice)
	row(w, "lost in the kernel: never read", lost)
	row(w, "periods skipped while buffers were full: never sampled", skipped)
	row(w, "queue full, in the exporter's samples (counted as refused above)", enqueue)
	row(w, "refused for good by the backend, in the exporter's samples (rejected above)", failed)
	row(w, "left in the queue at the end, bytes", s.left)
	for _, m := range []map[string]int64{others, triggers} {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			row(w, name, m[name])
		}
	}
	row(w, "cgroups that came and went", s.world.come)
	for _, status := range slices.Sorted(maps.Keys(s.world.asked)) {
		row(w, fmt.Sprintf("manual triggers answered %d", status), s.world.asked[status])
	}
	fmt.Fprintln(w)
	var none []string
	for _, t := range append(s.ledger.terms(), term{"lost in the kernel", lost}, term{"queue full", enqueue}, term{"came again", twice}) {
		if t.n == 0 && (slices.Contains(forced, t.name) || strings.Contains(t.name, " ")) {
			none = append(none, t.name)
		}
	}
	if len(none) > 0 {
		fmt.Fprintf(w, "Not reached in this run: %s.\n\n", strings.Join(none, ", "))
	}
}

func (s *soak) printWeights(w io.Writer) {
	fmt.Fprint(w, "## What the collector held: at its start, warm, at most, at last\n\n")
	head(w, "run", "resident MiB", "goroutines", "descriptors")
	of := func(m weighed, what func(weight) int64) string {
		return fmt.Sprintf("%d, %d, %d, %d", what(m.start), what(m.warm), what(m.most), what(m.last))
	}
	for _, m := range s.weights {
		row(w, m.name, of(m, func(w weight) int64 { return w.rss >> 20 }), of(m, func(w weight) int64 { return int64(w.goroutines) }),
			of(m, func(w weight) int64 { return int64(w.descriptors) }))
	}
	fmt.Fprintln(w)
	head(w, "gauge", "at most")
	for _, name := range slices.Sorted(maps.Keys(s.heaviest)) {
		row(w, "`"+name+"`", s.heaviest[name])
	}
	fmt.Fprintln(w)
}

func (s *soak) printComplaints(w io.Writer) {
	fmt.Fprint(w, "## Warnings and errors in the log\n\n")
	head(w, "message", "times")
	for _, message := range slices.Sorted(maps.Keys(s.complaints)) {
		row(w, strings.ReplaceAll(message, "|", "\\|"), s.complaints[message])
	}
	fmt.Fprintln(w)
}
