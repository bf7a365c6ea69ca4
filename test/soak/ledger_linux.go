// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// entry contains the counters of one run of the collector, from its start to its end. The
// counters count events unless their comment says otherwise.
type entry struct {
	name   string
	direct bool // the exporter has no queue
	killed bool // the held events are lost

	// read counts the events in the receiver, by outcome. Only exported and
	// refused events are also counted by the next component.
	read map[string]int64
	// twins counts the objects of Go's allocations. The receiver counts an allocation as one
	// event. All later components count two events for it, because they count the objects
	// and the bytes separately.
	twins int64
	// sentAccepted and handedRefused count the samples that the receiver passed to the
	// next component, by the result of the call.
	sentAccepted, handedRefused int64
	// decided counts the events in the processor, by outcome. held is the
	// number of events in the processor's recorder at the end.
	decided map[string]int64
	held    int64
	// delivered counts the events that the backend stored during the run.
	delivered int64

	// The following counters are not in the equation.
	lost          int64            // lost in the kernel and never read
	skipped       int64            // periods in which sampling was paused
	enqueueFailed int64            // counts samples instead of events
	sendFailed    int64            // counts samples with a permanent error
	otherLosses   map[string]int64 // by name
	triggers      map[string]int64 // by outcome
}

const (
	profilerSamples = "otelcol_cpu_profiler_samples"
	triggerSamples  = "otelcol_cpu_trigger_samples"
)

// newEntry creates the entry of a run from the figures at the end of the run.
func newEntry(name string, direct bool, f figures) entry {
	e := entry{
		name: name, direct: direct,
		read:          f.by(profilerSamples, "outcome"),
		sentAccepted:  f.sum("otelcol_receiver_accepted_profile_samples"),
		handedRefused: f.sum("otelcol_receiver_refused_profile_samples") + f.sum("otelcol_receiver_failed_profile_samples"),
		decided:       f.by(triggerSamples, "outcome"),
		held:          f.sum("otelcol_cpu_trigger_recorder_samples"),
		lost:          f.sum("otelcol_cpu_profiler_samples_lost"),
		skipped:       f.sum("otelcol_cpu_profiler_periods_skipped"),
		enqueueFailed: f.sum("otelcol_exporter_enqueue_failed_profile_samples"),
		sendFailed:    f.sum("otelcol_exporter_send_failed_profile_samples", "error_permanent", "true"),
		triggers:      f.by("otelcol_cpu_trigger_triggers", "outcome"),
		otherLosses:   map[string]int64{},
	}
	for _, outcome := range []string{"exported", "refused"} {
		e.twins += f.sum(profilerSamples, "outcome", outcome, "sampler", "allocations")
	}
	for reason, n := range f.by("otelcol_cpu_profiler_off_cpu_hidden", "reason") {
		e.otherLosses["waits not shown: "+reason] = n
	}
	for limit, n := range f.by("otelcol_cpu_profiler_limits_hit", "limit") {
		e.otherLosses["forgotten at a limit: "+limit] = n
	}
	for outcome, n := range f.by("otelcol_cpu_profiler_pprof_pulls", "outcome") {
		e.otherLosses["pulls of pprof: "+outcome] = n
	}
	for _, outcome := range []string{"failed", "late", "unavailable"} {
		e.otherLosses["readings: "+outcome] = f.sum("otelcol_cpu_trigger_readings", "outcome", outcome)
	}
	return e
}

func total(m map[string]int64) (n int64) {
	for _, v := range m {
		n += v
	}
	return n
}

// in returns the number of events that the receiver read. The
// objects of an allocation count in addition to its bytes.
func (e *entry) in() int64 { return total(e.read) + e.twins }

// untried returns the number of events that the receiver refused
// without calling the next component.
func (e *entry) untried() int64 {
	return e.read["exported"] + e.read["refused"] + e.twins - e.sentAccepted - e.handedRefused
}

// check returns the contradictions between the counters of the run.
func (e *entry) check() (faults []string) {
	fault := func(format string, args ...any) {
		faults = append(faults, e.name+": "+fmt.Sprintf(format, args...))
	}
	if got, want := total(e.decided)+e.held, e.sentAccepted+e.handedRefused; got != want {
		fault("cpu_profiler handed on %d (%d accepted, %d refused), cpu_trigger has %d (%v and holds %d): %+d",
			want, e.sentAccepted, e.handedRefused, got, e.decided, e.held, got-want)
	}
	switch untried := e.untried(); {
	case e.direct && e.twins != 0:
		fault("there are %d allocations, which a run without a queue does not sample", e.twins)
	case e.direct && e.read["exported"] != e.sentAccepted:
		fault("cpu_profiler says that %d were exported, its calls that %d were", e.read["exported"], e.sentAccepted)
	case e.direct && untried < 0:
		fault("cpu_profiler refused %d, its calls %d", e.read["refused"], e.handedRefused)
	case !e.direct && untried != 0:
		fault("cpu_profiler counts %d exported, %d refused and %d objects beside them, its calls %d accepted and %d refused: %+d",
			e.read["exported"], e.read["refused"], e.twins, e.sentAccepted, e.handedRefused, untried)
	}
	if e.direct && e.decided["passed"] != e.delivered {
		fault("cpu_trigger says that %d passed, the backend took %d: %+d", e.decided["passed"], e.delivered, e.delivered-e.decided["passed"])
	}
	if !e.killed && e.held != 0 {
		fault("cpu_trigger holds %d after its shutdown", e.held)
	}
	return faults
}

// ledger contains the entries of all runs and the backend's counts.
type ledger struct {
	entries []entry
	// out and rejected are the numbers of events at the backend at the end of the run. out
	// counts the events of each profile once. rejected counts the events of profiles that were
	// refused for good.
	out, rejected int64
}

// term is one term of the equation.
type term struct {
	name string
	n    int64
}

// terms returns the right side of the equation. Events that the
// receiver passed on are listed under their later outcomes. Events
// that passed the processor are listed with the backend's counts.
func (l *ledger) terms() []term {
	sums := map[string]int64{}
	for i := range l.entries {
		e := &l.entries[i]
		for outcome, n := range e.read {
			if outcome != "exported" && outcome != "refused" {
				sums[outcome] += n
			}
		}
		for outcome, n := range e.decided {
			if outcome != "passed" {
				sums[outcome] += n
			}
		}
		sums["refused"] += e.untried()
		sums["killed"] += e.held
	}
	sums["rejected"] = l.rejected
	// The order follows the path of an event. All possible
	// losses are listed, even if their count is 0.
	order := []string{
		"refused", "rejected", "buffer_full", "rate_limited", "evicted", "gate_shut", "over_budget", "dry_run",
		"filtered", "unmatched", "unreadable", "left_out", "shutdown", "killed",
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		if !slices.Contains(order, name) {
			order = append(order, name)
		}
	}
	out := []term{{"out", l.out}, {"held", 0}}
	for _, name := range order {
		out = append(out, term{name, sums[name]})
	}
	return out
}

func (l *ledger) in() (n int64) {
	for i := range l.entries {
		n += l.entries[i].in()
	}
	return n
}

// queued returns the number of events that entered the exporter's queue, over all runs.
func (l *ledger) queued() (n int64) {
	for i := range l.entries {
		if !l.entries[i].direct {
			n += l.entries[i].decided["passed"]
		}
	}
	return n
}

// direct returns the number of events that passed in the runs without a queue.
func (l *ledger) direct() (n int64) {
	for i := range l.entries {
		if l.entries[i].direct {
			n += l.entries[i].decided["passed"]
		}
	}
	return n
}

// equation returns the equation as one line and reports whether the equation holds.
func (l *ledger) equation() (line string, holds bool) {
	var text strings.Builder
	sum := int64(0)
	for i, t := range l.terms() {
		sum += t.n
		if i > 0 {
			text.WriteString(" + ")
		}
		fmt.Fprintf(&text, "%s %d", t.name, t.n)
	}
	sign := "="
	if sum != l.in() {
		sign = fmt.Sprintf("≠ (by %+d)", sum-l.in())
	}
	return fmt.Sprintf("in %d %s %s", l.in(), sign, text.String()), sum == l.in()
}

// check returns all contradictions between the counters.
func (l *ledger) check() (faults []string) {
	for i := range l.entries {
		faults = append(faults, l.entries[i].check()...)
	}
	if got, want := l.out+l.rejected, l.queued()+l.direct(); got != want {
		faults = append(faults, fmt.Sprintf("cpu_trigger says that %d passed, the backend has %d (%d taken, %d turned away): %+d",
			want, got, l.out, l.rejected, got-want))
	}
	if _, holds := l.equation(); !holds {
		faults = append(faults, "the equation does not hold")
	}
	return faults
}
