// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"cmp"
	"html/template"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"

	"github.com/hotprofile/hotprofile/extension/consoleextension/internal/store"
	"github.com/hotprofile/hotprofile/internal/otlpprofiles/attr"
)

// titleLength is the maximum length of the tooltip of a truncated text, in characters.
const titleLength = 1000

// functions returns the functions that templates call. Strings from other programs must be
// formatted by text, or by a function that uses text.
func (s *Server) functions() template.FuncMap {
	return template.FuncMap{
		"static":   s.static.url, // static "console.css": the URL of a file
		"text":     text,         // text 40 TEXT: the text, cut, with the whole as tooltip
		"cut":      cutText,      // cut 40 TEXT: the text alone, for titles and labels
		"number":   number,       // number 93.456: 93.5
		"measure":  measure,      // measure MONITOR 93.456: 93.5 %
		"unit":     unitOf,       // unit MONITOR: the unit of its values
		"count":    count[int],   // count 1234567: 1,234,567
		"count64":  count[int64], // the same
		"bytes":    formatBytes,  // bytes 1234567: 1.18 MiB
		"share":    func(part, all int64) string { return percent(float64(part) / float64(all)) },
		"duration": formatDuration, // duration 90s: 1 min 30 s
		"time":     formatTime,     // time TIME: <time>, in the zone of the reader
		"ago":      s.ago,          // ago TIME: <time>3 min ago</time>
		"state":    func(state string) string { return strings.ReplaceAll(state, "_", " ") },
		"name":     unitName,  // name UNIT: its usual name
		"place":    unitPlace, // place UNIT: its pod, container, cgroup or process
		"reason":   reason,    // reason OPENING: cpu_utilization 93.5 %, threshold 80 %, 30s average
		"plural":   plural,    // plural 2 "gate" "gates": 2 gates
		"counts":   countedIn, // counts COUNTS "hot": the counts without hot, largest first
		"sum":      sum,       // sum COUNTS: the sum
		"list":     func(v ...any) []any { return v },

		"phase":     phaseName, // phase "both": at the trigger
		"plaintime": plainTime, // plaintime TIME: 2026-01-02 15:04:05 UTC, without markup
		"isotime":   machineTime,
		"fieldtime": func(t time.Time) string { return t.UTC().Format(fieldTime) }, // fieldtime TIME: 2026-01-02T15:04:05
	}
}

// text formats a string from another program for display, with at most n characters. The
// element bdi isolates the writing direction of the string from the surrounding text. If
// the string is truncated, a tooltip shows up to titleLength characters.
func text(n int, s string) template.HTML {
	short, cut := shorten(n, s)
	title := ""
	if cut {
		title = ` title="` + template.HTMLEscapeString(cutText(titleLength, s)) + `"`
	}
	return template.HTML(`<bdi` + title + `>` + template.HTMLEscapeString(short) + `</bdi>`) //nolint:gosec // escaped
}

// cutText shortens a string to n characters for display.
func cutText(n int, s string) string {
	short, _ := shorten(n, s)
	return short
}

// shorten truncates a string to at most n characters, and reports whether the string was
// longer. Invisible characters, and characters that change the text direction, are
// escaped. shorten reads only the returned part of the string.
func shorten(n int, s string) (string, bool) {
	var b strings.Builder
	for i, r := range s {
		if n == 0 {
			return b.String() + "…", true
		}
		n--
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			b.WriteRune(utf8.RuneError)
		case r == '\n' || r == '\t':
			b.WriteByte(' ')
		case r == ' ' || unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			b.WriteString(escaped(r))
		}
	}
	return b.String(), false
}

// escaped returns the escape sequence of a character in Go, such as \u202e.
func escaped(r rune) string { return strings.Trim(strconv.QuoteRuneToASCII(r), "'") }

// number formats a value with at most three significant digits, except that values from
// 100 to 1e15 are formatted as whole numbers.
func number(v float64) string {
	switch abs := math.Abs(v); {
	case math.IsNaN(v):
		return "–"
	case math.IsInf(v, 0):
		return strings.Replace(strconv.FormatFloat(v, 'f', -1, 64), "Inf", "∞", 1)
	case abs >= 1e15:
		return strconv.FormatFloat(v, 'g', 3, 64)
	case abs >= 100:
		return count(int64(math.Round(v)))
	case abs >= 10:
		return trimZeros(strconv.FormatFloat(v, 'f', 1, 64))
	case abs >= 1 || v == 0:
		return trimZeros(strconv.FormatFloat(v, 'f', 2, 64))
	case abs >= 0.001:
		return trimZeros(strconv.FormatFloat(v, 'f', 3, 64))
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

func trimZeros(s string) string {
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

// count returns a number with commas between thousands.
func count[T int | int64](n T) string { return humanize.Comma(int64(n)) }

// plural returns a count and a word in the singular or the plural.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + many
}

// formatBytes returns a size with a binary unit.
func formatBytes(n int64) string {
	v, unit := float64(n), 0
	for math.Abs(v) >= 1024 && unit < 4 {
		v, unit = v/1024, unit+1
	}
	return number(v) + " " + [...]string{"B", "KiB", "MiB", "GiB", "TiB"}[unit]
}

// formatDuration formats a time span with at most two units.
func formatDuration(d time.Duration) string {
	if d < 0 {
		return "-" + formatDuration(-d)
	}
	if d < 10*time.Second {
		return seconds3(d.Seconds())
	}
	units := [...]struct {
		size time.Duration
		name string
	}{{24 * time.Hour, " d"}, {time.Hour, " h"}, {time.Minute, " min"}, {time.Second, " s"}}
	for i, u := range units {
		if d < u.size || i == 0 && d < 72*time.Hour {
			continue
		}
		s := strconv.FormatInt(int64(d/u.size), 10) + u.name
		if i+1 < len(units) {
			next := units[i+1]
			if rest := (d % u.size) / next.size; rest > 0 {
				s += " " + strconv.FormatInt(int64(rest), 10) + next.name
			}
		}
		return s
	}
	return d.String()
}

// formatTime returns an HTML element for a time in UTC. console.js converts the time to
// the reader's time zone.
func formatTime(t time.Time) template.HTML {
	if t.IsZero() {
		return "–"
	}
	return template.HTML(`<time datetime="` + machineTime(t) + `">` + plainTime(t) + `</time>`) //nolint:gosec // digits
}

// plainTime formats a time without markup.
func plainTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// machineTime returns a time in the format of the attribute datetime.
func machineTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// ago returns an HTML element for the time since t. The tooltip shows t.
func (s *Server) ago(t time.Time) template.HTML {
	if t.IsZero() {
		return "–"
	}
	d := s.Now().Sub(t)
	words := "just now"
	switch {
	case d < -2*time.Second:
		words = "in " + roughly(-d)
	case d >= 2*time.Second:
		words = roughly(d) + " ago"
	}
	return template.HTML(`<time class="ago" datetime="` + machineTime(t) + `" title="` + plainTime(t) + `">` + words + `</time>`) //nolint:gosec // digits
}

// roughly formats a time span with one unit. From one hour to 10 hours,
// it uses hours and minutes.
func roughly(d time.Duration) string {
	switch {
	case d < time.Minute:
		return formatDuration(d.Truncate(time.Second))
	case d < 10*time.Hour:
		return formatDuration(d.Truncate(time.Minute))
	case d < 48*time.Hour:
		return formatDuration(d.Truncate(time.Hour))
	}
	return strconv.Itoa(int(d.Hours()/24)) + " d"
}

// monitorUnits maps monitors to their units, for monitors whose unit does not follow from
// a suffix of the name.
var monitorUnits = map[string]string{
	"cpu_usage": "cores", "cpu_bottleneck": "%", "cpu_busiest_thread": "%", "cpu_throttling": "%",
	"memory_events": "/s", "thread_count": "threads", "system_load": "",
	"tcp_retransmits": "%", "tcp_rtt": "ms", "tcp_connect_failures": "/s",
}

// unitOf returns the unit of a monitor's values. It returns an empty string for an unknown
// monitor, such as a metric of the user.
func unitOf(monitor string) string {
	// Parameters may follow the name of a monitor.
	if i := strings.IndexFunc(monitor, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }); i >= 0 {
		monitor = monitor[:i]
	}
	if unit, ok := monitorUnits[monitor]; ok {
		return unit
	}
	for _, s := range [...]struct{ suffix, unit string }{
		{"_utilization", "%"},
		{"_pressure", "%"},
		{"_error_rate", "%"},
		{"_response_time", "ms"},
		{"_request_rate", "/s"},
	} {
		if strings.HasSuffix(monitor, s.suffix) {
			return s.unit
		}
	}
	return ""
}

// measure formats a value of a monitor together with the monitor's unit.
func measure(monitor string, v float64) string {
	unit := unitOf(monitor)
	if unit == "" || math.IsNaN(v) {
		return number(v)
	}
	return number(v) + "\u00a0" + unit // no-break space
}

// nearness returns the ratio of a reading to its threshold, or -1 if the ratio is unknown.
// The budgets of cpu_trigger also prefer the units with the largest ratio.
func nearness(r store.Reading) float64 {
	switch {
	case math.IsNaN(r.Value) || math.IsNaN(r.Threshold):
		return -1
	case r.Threshold > 0:
		return r.Value / r.Threshold
	case r.Value > r.Threshold:
		return math.Inf(1)
	}
	return 0
}

// unitName returns the name by which users know a unit, such as the name of its service,
// container, executable or process. If the unit has no such name, unitName returns a part
// of the unit's own name.
func unitName(u store.Unit) string {
	if v := u.Resource[attr.ServiceName]; !isUnnamed(v) {
		return v
	}
	for _, key := range [...]string{attr.ContainerName, attr.RuntimeContainerName, attr.ExecutableName} {
		if v := u.Resource[key]; v != "" {
			return v
		}
	}
	if p := processOf(u); p != "" {
		return p
	}
	name := strings.TrimRight(u.Name, "/")
	if isContainerID(name) {
		return name[:12]
	}
	if i := strings.LastIndexByte(name, '/'); i >= 0 && i+1 < len(name) {
		name = name[i+1:]
	}
	if name == "" {
		return "/"
	}
	return name
}

// isUnnamed reports whether a service has no name or only the default name.
func isUnnamed(service string) bool {
	return service == "" || strings.HasPrefix(service, "unknown_service")
}

// unitPlace returns the place where a unit runs. The place is a pod and a container, a
// cgroup, or a process.
func unitPlace(u store.Unit) string {
	if pod := u.Resource[attr.PodName]; pod != "" {
		place := pod
		if namespace := u.Resource[attr.NamespaceName]; namespace != "" {
			place = namespace + "/" + pod
		}
		if c := u.Resource[attr.ContainerName]; c != "" && c != unitName(u) {
			place += " " + c
		}
		return place
	}
	if isContainerID(u.Name) {
		if name := u.Resource[attr.RuntimeContainerName]; name != "" {
			return "container " + name
		}
		return "container " + u.Name[:12]
	}
	return cmp.Or(processOf(u), u.Name)
}

// processOf returns a string such as "process 4242" if a unit is a process, and an empty
// string otherwise. The name of such a unit is PID:START.
func processOf(u store.Unit) string {
	pid, started, ok := strings.Cut(u.Name, ":")
	if !ok || pid == "" || len(pid) > 10 || strings.Trim(pid, "0123456789") != "" {
		return ""
	}
	if _, err := time.Parse(time.RFC3339, started); err != nil {
		return ""
	}
	return "process " + pid
}

// isContainerID reports whether the name of a unit is a container ID. A container ID has
// at least 12 hexadecimal digits.
func isContainerID(name string) bool {
	return len(name) >= 12 && len(name) <= 64 && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'f')
	})
}

// reason describes why a gate opened. A gate opens manually, because of an alert, to record
// a baseline, or because a condition holds. The description of a condition contains the
// monitor's value, the threshold and the window.
func reason(o store.Opening) string {
	switch {
	case o.Kind == "manual": // the monitor is "manual" too
		return "opened by hand"
	case o.Kind == "alert": // the monitor is the name of the alert
		return strings.TrimSpace("opened by the alert " + cutText(80, o.Monitor))
	case o.Monitor == "" && o.Kind == "baseline":
		return "baseline"
	case o.Monitor == "":
		return "not known"
	}
	s := cutText(80, o.Monitor) + " " + measure(o.Monitor, o.Value) + ", threshold " + measure(o.Monitor, o.Threshold)
	if o.Window != "" {
		s += ", " + cutText(80, o.Window)
	}
	return s
}

// jsonNumber is a number that is encoded in JSON with six significant digits,
// which are enough for charts. NaN and infinities are encoded as null, because
// JSON cannot represent them.
type jsonNumber float64

func (n jsonNumber) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(n), 'g', 6, 64), nil
}
