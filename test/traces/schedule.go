// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"strconv"
	"strings"
	"time"
)

// Step is the resolution of a schedule. Shorter changes of the load have no effect.
const Step = 20 * time.Millisecond

// maxSeconds limits the length of a trace, so that no trace
// is too large for the repository.
const maxSeconds = 900

// Schedule is the plan of a load. Times are in seconds since the beginning of the trace.
// CPU amounts are in cores.
type Schedule struct {
	Name string
	// About describes the trace in a sentence.
	About string
	// Recorded is true if the load really runs. Otherwise, the trace is synthesized.
	Recorded bool
	Seconds  int
	// CPUs is the number of CPUs of the machine. If the load has no CPU limit, it can be
	// recorded only on a machine with this number of CPUs.
	CPUs int
	// Threads is the number of threads that share the demand equally.
	Threads int
	// Serial is true if the work cannot be spread over threads. The
	// load can then use only one core.
	Serial bool
	// Age is the unit's age at the beginning of the trace. It is zero if the unit starts
	// with the trace. AgeCores is the unit's average usage before the trace.
	Age      time.Duration
	AgeCores float64
	// Parent is the quota of the parent cgroup. It is zero if there is no parent with a quota.
	Parent float64
	// Noise is the maximum relative difference between a second's
	// demand and the planned demand.
	Noise      float64
	Limits     []Limit
	Loads      []Load
	Neighbours []Load // run in a sibling of the unit's cgroup
	Down       []Span // times without a cgroup
	Missing    []Span // times without readings
}

// Limit is a quota that applies from the time From on. If Cores is 0, there is no quota.
type Limit struct{ From, Cores float64 }

// Span is the time [From, To).
type Span struct{ From, To float64 }

func (s Span) holds(t float64) bool { return t >= s.From && t < s.To }

// Load is a demand that grows from Cores at the beginning of a span to
// EndCores at its end. If Every is set, each period of Every seconds has
// demand only in its first For seconds.
type Load struct {
	Span
	Cores, EndCores float64
	For, Every      float64
}

func (l Load) at(t float64) float64 {
	if !l.holds(t) {
		return 0
	}
	// The tolerance moves a time that rounding put just before
	// the next period into this period.
	if l.Every > 0 && math.Mod(t-l.From+1e-6, l.Every) >= l.For {
		return 0
	}
	return l.Cores + (l.EndCores-l.Cores)*(t-l.From)/(l.To-l.From)
}

// Demand returns the number of cores that the load could use at a moment.
func (s *Schedule) Demand(t float64) float64 {
	if s.IsDown(t) {
		return 0
	}
	var d float64
	for _, l := range s.Loads {
		d += l.at(t)
	}
	if s.Noise > 0 {
		d *= 1 + s.Noise*s.noise(int(t))
	}
	return min(d, float64(s.Threads))
}

// Neighbour returns the demand of the neighbours.
func (s *Schedule) Neighbour(t float64) (d float64) {
	for _, l := range s.Neighbours {
		d += l.at(t)
	}
	return d
}

// noise returns a value between -1 and 1 that depends only on the name and the second.
func (s *Schedule) noise(second int) float64 {
	h := fnv.New64a()
	fmt.Fprint(h, s.Name, second)
	return float64(int64(mix(h.Sum64()))) / (1 << 63)
}

// mix scrambles a hash so that each bit of x affects all bits of the result. Without mix,
// the hashes of nearly equal inputs would differ in only some bits.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// Quota returns the unit's own quota at a moment. Zero means no quota.
func (s *Schedule) Quota(t float64) (cores float64) {
	for _, l := range s.Limits {
		if t >= l.From {
			cores = l.Cores
		}
	}
	return cores
}

// Limit returns the number of cores that the unit may use at a moment.
func (s *Schedule) Limit(t float64) float64 {
	limit := float64(s.CPUs)
	for _, q := range [...]float64{s.Quota(t), s.Parent} {
		if q > 0 {
			limit = min(limit, q)
		}
	}
	return limit
}

// Quotaed reports whether a quota limits the unit at a moment.
func (s *Schedule) Quotaed(t float64) bool { return s.Quota(t) > 0 || s.Parent > 0 }

// IsDown reports whether the cgroup does not exist at a moment.
func (s *Schedule) IsDown(t float64) bool { return within(s.Down, t) }

// IsMissing reports whether readings are missing at a moment.
func (s *Schedule) IsMissing(t float64) bool { return within(s.Missing, t) }

func within(spans []Span, t float64) bool {
	for _, sp := range spans {
		if sp.holds(t) {
			return true
		}
	}
	return false
}

// ForTuning reports whether a trace belongs to the tuning half of the corpus.
func (s *Schedule) ForTuning() bool {
	h := fnv.New32a()
	h.Write([]byte(s.Name))
	return h.Sum32()%2 == 0
}

// ParseSchedule reads the text of a schedule. The name is the
// file's name without extension.
func ParseSchedule(name, text string) (*Schedule, error) {
	s := &Schedule{Name: name, Threads: 1}
	kind := ""
	var about []string
	for n, line := range strings.Split(text, "\n") {
		if comment, ok := strings.CutPrefix(line, "#"); ok {
			about = append(about, strings.TrimSpace(comment))
			continue
		}
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if f[0] == "recorded" || f[0] == "synthetic" {
			kind = f[0]
		}
		if err := s.line(f); err != nil {
			return nil, fmt.Errorf("schedule %s, line %d, %q: %w", name, n+1, line, err)
		}
	}
	s.About = strings.Join(about, " ")
	s.Recorded = kind == "recorded"
	s.close()
	if err := s.validate(kind); err != nil {
		return nil, fmt.Errorf("schedule %s: %w", name, err)
	}
	return s, nil
}

// line reads one line. A line contains a key, a value, and words with their own values.
func (s *Schedule) line(f []string) (err error) {
	key, f := f[0], f[1:]
	if key == "recorded" || key == "synthetic" || key == "serial" {
		s.Serial = s.Serial || key == "serial"
		return expectEnd(f)
	}
	if len(f) == 0 {
		return errors.New("a value is missing")
	}
	value := f[0]
	words, err := words(f[1:])
	if err != nil {
		return err
	}
	switch key {
	case "seconds":
		s.Seconds, err = strconv.Atoi(value)
	case "cpus":
		s.CPUs, err = strconv.Atoi(value)
	case "threads":
		s.Threads, err = strconv.Atoi(value)
	case "parent":
		s.Parent, err = cores(value)
	case "noise":
		s.Noise, err = strconv.ParseFloat(strings.TrimSuffix(value, "%"), 64)
		s.Noise /= 100
	case "age":
		if s.Age, err = time.ParseDuration(value); err == nil {
			s.AgeCores, err = words.cores("at")
		}
	case "limit":
		l := Limit{}
		if value != "none" {
			l.Cores, err = cores(value)
		}
		if err == nil {
			l.From, err = words.seconds("from", 0)
		}
		s.Limits = append(s.Limits, l)
	case "load", "neighbour":
		var l Load
		if l, err = load(value, words); key == "load" {
			s.Loads = append(s.Loads, l)
		} else {
			s.Neighbours = append(s.Neighbours, l)
		}
	case "down", "missing":
		var sp Span
		if sp, err = span(value, words); key == "down" {
			s.Down = append(s.Down, sp)
		} else {
			s.Missing = append(s.Missing, sp)
		}
	default:
		return errors.New("unknown key")
	}
	if err == nil {
		err = words.left()
	}
	return err
}

func load(value string, w wordMap) (l Load, err error) {
	from, to, ramp := strings.Cut(value, "..")
	if l.Cores, err = cores(from); err != nil {
		return l, err
	}
	l.EndCores = l.Cores
	if ramp {
		if l.EndCores, err = cores(to); err != nil {
			return l, err
		}
	}
	if l.From, err = w.seconds("from", 0); err != nil {
		return l, err
	}
	if l.To, err = w.seconds("to", -1); err != nil {
		return l, err
	}
	if _, ok := w["every"]; !ok {
		return l, nil
	}
	if l.Every, err = w.duration("every"); err != nil {
		return l, err
	}
	l.For, err = w.duration("for")
	return l, err
}

func span(value string, w wordMap) (sp Span, err error) {
	if sp.From, err = strconv.ParseFloat(value, 64); err != nil {
		return sp, err
	}
	sp.To, err = w.seconds("to", -1)
	return sp, err
}

// close sets the end of loads without an end to the end of the trace.
func (s *Schedule) close() {
	for _, loads := range [][]Load{s.Loads, s.Neighbours} {
		for i := range loads {
			if loads[i].To < 0 {
				loads[i].To = float64(s.Seconds)
			}
		}
	}
}

func (s *Schedule) validate(kind string) error {
	switch {
	case kind == "":
		return errors.New("it must say recorded or synthetic")
	case s.About == "":
		return errors.New("it must say in a comment what happens")
	case s.Seconds < 60 || s.Seconds > maxSeconds:
		return fmt.Errorf("seconds: %d is not allowed: must be from 60 to %d", s.Seconds, maxSeconds)
	case s.CPUs < 1:
		return errors.New("cpus: must be at least 1")
	case s.Threads < 1:
		return errors.New("threads: must be at least 1")
	case s.Noise < 0 || s.Noise > 1:
		return errors.New("noise: must be from 0% to 100%")
	case len(s.Loads) == 0:
		return errors.New("it has no load")
	case len(s.Neighbours) > 0 && s.Parent == 0:
		return errors.New("neighbours are in a cgroup beside the unit's: give what is above both a quota (parent)")
	case s.Recorded && s.Age > 0:
		return errors.New("age: a recorded load starts with its trace")
	}
	for i, l := range s.Limits {
		if i > 0 && l.From <= s.Limits[i-1].From {
			return errors.New("limits must be in the order of time")
		}
	}
	for _, l := range append(append([]Load(nil), s.Loads...), s.Neighbours...) {
		if l.To <= l.From || l.To > float64(s.Seconds) {
			return fmt.Errorf("a load from %v to %v is not in the trace", l.From, l.To)
		}
		if l.Every != 0 && (l.For <= 0 || l.For > l.Every || l.For < Step.Seconds()) {
			return fmt.Errorf("a load for %vs every %vs: the first must be at least %v and not above the second", l.For, l.Every, Step)
		}
		if max(l.Cores, l.EndCores) > float64(max(s.Threads, 1)) {
			return errors.New("a load wants more cores than it has threads")
		}
	}
	for _, sp := range append(append([]Span(nil), s.Down...), s.Missing...) {
		if sp.To <= sp.From || sp.To > float64(s.Seconds) {
			return fmt.Errorf("%v to %v is not in the trace", sp.From, sp.To)
		}
	}
	return nil
}

func cores(value string) (float64, error) {
	c, err := strconv.ParseFloat(value, 64)
	if err == nil && !(c >= 0 && c <= 4096) {
		err = errors.New("cores must be from 0 to 4096")
	}
	return c, err
}

// wordMap holds pairs such as "from 60". The method take removes a pair.
type wordMap map[string]string

func words(f []string) (wordMap, error) {
	if len(f)%2 != 0 {
		return nil, errors.New("words must come in pairs, as in: from 60")
	}
	w := wordMap{}
	for i := 0; i < len(f); i += 2 {
		w[f[i]] = f[i+1]
	}
	return w, nil
}

func (w wordMap) take(name string) string {
	v := w[name]
	delete(w, name)
	return v
}

func (w wordMap) seconds(name string, without float64) (float64, error) {
	v := w.take(name)
	if v == "" {
		return without, nil
	}
	return strconv.ParseFloat(v, 64)
}

func (w wordMap) duration(name string) (float64, error) {
	d, err := time.ParseDuration(w.take(name))
	return d.Seconds(), err
}

func (w wordMap) cores(name string) (float64, error) {
	if v := w.take(name); v != "" {
		return cores(v)
	}
	return 0, nil
}

func (w wordMap) left() error {
	for name := range w {
		return fmt.Errorf("unknown word %q", name)
	}
	return nil
}

func expectEnd(f []string) error {
	if len(f) > 0 {
		return errors.New("it takes no value")
	}
	return nil
}
