// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// lines is a writer for the collector's standard error. It prints known log messages as
// sentences and other messages with their fields. Lines that are not JSON are not
// changed.
type lines struct {
	to      io.Writer
	partial []byte
	hinted  bool // whether the next command was suggested already
}

func (l *lines) Write(p []byte) (int, error) {
	l.partial = append(l.partial, p...)
	for {
		line, rest, whole := bytes.Cut(l.partial, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		l.print(line)
		l.partial = rest
	}
}

// say prints a line about the demo itself.
func (l *lines) say(what, format string, args ...any) {
	l.write(time.Now(), what, fmt.Sprintf(format, args...))
}

func (l *lines) write(at time.Time, what, text string) {
	fmt.Fprintf(l.to, "%s  %-15s  %s\n", at.Format(time.TimeOnly), what, text)
}

// entry is a message of the collector's JSON log.
type entry map[string]any

func (l *lines) print(line []byte) {
	var e entry
	if json.Unmarshal(line, &e) != nil || e["msg"] == nil {
		fmt.Fprintf(l.to, "%s\n", line)
		return
	}
	at, err := time.Parse("2006-01-02T15:04:05.000Z0700", e.text("ts"))
	if err != nil {
		at = time.Now()
	}
	message := e.text("msg")
	if strings.HasPrefix(message, "console at ") {
		l.write(at.Local(), "browser", message)
		return
	}
	switch message {
	case "Internal trace telemetry disabled", "Starting extensions...", "Stopping extensions...",
		"Extension is starting...", "Extension started.", "manual trigger server listening",
		"Everything is ready. Begin running and processing data.", "Received signal from OS", "Starting shutdown...",
		"profiles match no unit", "monitor unavailable": // the last two messages are about other programs on this machine
	case "sampling started":
		text := fmt.Sprintf("%s, at %s Hz", e.text("what"), e.text("frequency"))
		if missing := e.list("not_sampled"); missing != "" {
			text += fmt.Sprintf("; not sampled: %s (%s)", missing, e.text("why"))
		}
		l.write(at.Local(), "sampling", text)
	case "cgroup mode":
		l.write(at.Local(), "watching", fmt.Sprintf("cgroups (%s) below %s", e.text("mode"), e.text("tree")))
	case "gate opened":
		if e.text("phase") == "baseline" {
			l.write(at.Local(), "baseline", e.who()+" in a cool time, to compare with")
			return
		}
		l.write(at.Local(), message, e.opened())
	case "gate closed":
		if e.text("phase") == "baseline" {
			return
		}
		text := fmt.Sprintf("%s, by %s: %s samples in %s bytes", e.who(), e.text("why"), e.text("samples"), e.text("bytes"))
		if nothing := e.text("nothing_exported"); nothing != "" {
			text += "; " + nothing
		}
		l.write(at.Local(), message, text)
	case "profile written":
		l.write(at.Local(), message, fmt.Sprintf("%s: %s samples; hottest %s", e.text("file"), e.text("samples"), e.list("hottest")))
		if !l.hinted {
			l.hinted = true
			l.write(at.Local(), "type next", "go tool pprof -top "+e.text("file")+"   (or -http=: for a flame graph)")
		}
	default:
		what := e.text("level")
		for _, key := range []string{"level", "ts", "msg", "caller", "otelcol.component.id", "otelcol.component.kind", "otelcol.pipeline.id", "otelcol.signal"} {
			delete(e, key)
		}
		if strings.HasPrefix(message, "Starting otelcol-") || strings.HasPrefix(message, "Shutdown complete") {
			what = "collector"
		}
		l.write(at.Local(), what, strings.TrimSuffix(message+"  "+e.fields(), "  "))
	}
}

// opened returns the sentence for an opened gate, with the
// service, the value and the threshold.
func (e entry) opened() string {
	measure, per := e.text("monitor"), ""
	switch measure {
	case "cpu_utilization":
		measure, per = "used", " % of its CPU limit"
	case "cpu_usage":
		measure, per = "used", " CPU cores"
	case "cpu_throttling":
		measure, per = "was throttled in", " % of periods"
	default:
		return fmt.Sprintf("%s: %s", e.who(), e.fields())
	}
	return fmt.Sprintf("%s %s %s%s (%s, threshold %s)", e.who(), measure, e.text("value"), per, e.text("window"), e.text("threshold"))
}

// who returns the name of the service. If the entry has no service, who returns the unit.
func (e entry) who() string {
	if s := e.text("service"); s != "" {
		return s
	}
	return e.text("unit")
}

func (e entry) text(key string) string {
	switch v := e[key].(type) {
	case nil:
		return ""
	case string:
		return v
	case float64:
		return strconv.FormatFloat(round(v), 'f', -1, 64)
	default:
		b, _ := json.Marshal(v)
		return string(b)
	}
}

// round rounds to one decimal. Values below 1 are rounded to two decimals.
func round(v float64) float64 {
	scale := 10.0
	if math.Abs(v) < 1 {
		scale = 100
	}
	return math.Round(scale*v) / scale
}

func (e entry) list(key string) string {
	var texts []string
	all, _ := e[key].([]any)
	for _, v := range all {
		texts = append(texts, fmt.Sprint(v))
	}
	return strings.Join(texts, ", ")
}

// fields returns all fields that are not empty, in the form key=value.
func (e entry) fields() string {
	var texts []string
	for _, key := range slices.Sorted(maps.Keys(e)) {
		if v := e.text(key); v != "" && v != "[]" {
			texts = append(texts, key+"="+v)
		}
	}
	return strings.Join(texts, " ")
}
