// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package trigger

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hotprofile/hotprofile/internal/bytesize"
	"github.com/hotprofile/hotprofile/internal/trigger/budget"
	"github.com/hotprofile/hotprofile/internal/trigger/window"
)

var update = flag.Bool("update", false, "write what the scripts print into them")

var start = time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)

func testMonitors() []Monitor {
	return []Monitor{
		{Name: "util", Kind: window.Kind{Scale: 100}},
		{Name: "cores"},
		{Name: "memory", Kind: window.Kind{Gauge: true}},
		{Name: "throttling", Kind: window.Kind{Scale: 100, Sparse: true}},
		{Name: "load", Kind: window.Kind{Gauge: true}, Guard: "share", GuardAtLeast: 10},
		{Name: "share", Kind: window.Kind{Scale: 100}},
	}
}

// TestBulkScripts runs testdata/*.txt. Each line is a command, followed by its output. The
// output is indented by a tab. Times are offsets from the script's start.
//
//	interval 1s | pre_trigger 10s | max_gone 2 | min_age 1m | cooldown_by service
//	budget max_concurrent_units 1                    or another budget's name
//	policy NAME DURATION COOLDOWN [dry_run] [baseline=EVERY/DURATION] CONDITION…
//
// A CONDITION is MONITOR>THRESHOLD:WINDOW[<RELEASE_BELOW]. A WINDOW is like 30s or 8/10s.
// The monitors util (percent of cap) and cores are counters. The monitor memory is a
// gauge. The monitor throttling is a percentage of cap, and has no value for cap=0. The
// monitor load is a gauge that counts only while share is at least 10 percent.
//
// Readings are observed in order of time, before the first command of the same
// or a later time.
//
//	use UNIT MONITOR FROM..TO[/STEP] VALUE [cap=N]   CPU is used at VALUE and read every STEP
//	ramp UNIT MONITOR FROM..TO[/STEP] VALUE VALUE    same, rising from one value to another
//	miss UNIT MONITOR FROM..TO VALUE                 CPU is used, but every reading fails
//	counter UNIT MONITOR AT NUM DEN                  one reading; the counter continues there
//	started UNIT AT | await UNIT | service UNIT NAME | apply UNIT POLICY yes|no
//	eval AT | eval FROM..TO/STEP                     prints transitions
//	profile UNIT FROM..TO [accept|refuse]            prints the openings that let it pass
//	fire UNIT AT DURATION                            opens manually and prints the opening
//	alert UNIT AT DURATION NAME KEY                  opens by an alert and prints the opening
//	resolve UNIT AT KEY                              closes the opening of the alert
//	spend AT BYTES | afford AT BYTES                 of max_bytes_per_hour
//	stand UNIT AT                                    prints the status of each condition
//	hot AT UNIT…                                     prints heat, if hot, and if over budget
//	restart UNIT MONITOR AT | remove UNIT AT | close AT | stats
//	policies AT                                      applies the policies changed so far
//	drop POLICY
//	reboot AT [clock=-1h]                            restores a snapshot after a clock jump
func TestBulkScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			got := runScript(t, string(want))
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			require.Equal(t, string(want), got)
		})
	}
}

type script struct {
	t        *testing.T
	config   Config
	engine   *Engine
	counters map[string]*Reading // by unit and monitor
	pending  []observation
	out      strings.Builder
}

type observation struct {
	unit, monitor string
	reading       Reading
}

// upTo observes all readings up to an offset and returns the time at that offset.
func (s *script) upTo(offset time.Duration) time.Time {
	now := start.Add(offset)
	slices.SortStableFunc(s.pending, func(a, b observation) int { return a.reading.Time.Compare(b.reading.Time) })
	for len(s.pending) > 0 && !s.pending[0].reading.Time.After(now) {
		o := s.pending[0]
		s.engine.Decision(o.unit).Observe(o.monitor, o.reading)
		s.pending = s.pending[1:]
	}
	return now
}

func runScript(t *testing.T, text string) string {
	s := &script{t: t, config: Config{Monitors: testMonitors(), CollectionInterval: time.Second}, counters: map[string]*Reading{}}
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if strings.HasPrefix(line, "\t") {
			continue
		}
		fmt.Fprintln(&s.out, line)
		if line == "" || line[0] == '#' {
			continue
		}
		if err := s.run(strings.Fields(line)); err != nil {
			t.Fatalf("line %d: %s: %v", n, line, err)
		}
	}
	return s.out.String()
}

func (s *script) run(f []string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	arg := f[1:]
	switch f[0] {
	case "interval":
		s.config.CollectionInterval = duration(arg[0])
		return nil
	case "pre_trigger":
		s.config.PreTrigger = duration(arg[0])
		return nil
	case "max_gone":
		s.config.MaxGone = int(number(arg[0]))
		return nil
	case "min_age":
		s.config.MinAge = duration(arg[0])
		return nil
	case "cooldown_by":
		s.config.CooldownByService = arg[0] == "service"
		return nil
	case "budget":
		s.budget(arg[0], number(arg[1]))
		return nil
	case "policy":
		s.config.Policies = slices.Clone(s.config.Policies)
		p := parsePolicy(arg)
		if n := s.policy(p.Name); n >= 0 {
			s.config.Policies[n] = p
		} else {
			s.config.Policies = append(s.config.Policies, p)
		}
		return nil
	case "drop":
		n := s.policy(arg[0])
		s.config.Policies = slices.Delete(slices.Clone(s.config.Policies), n, n+1)
		return nil
	}
	if s.engine == nil {
		if s.engine, err = New(s.config); err != nil {
			return err
		}
		s.engine.clock.epoch = start
	}
	switch f[0] {
	case "use", "miss":
		s.use(f[0] == "use", arg, 0)
	case "ramp":
		s.use(true, arg[:4], number(arg[4])-number(arg[3]))
	case "started":
		s.engine.Decision(arg[0]).SetStarted(start.Add(duration(arg[1])))
	case "await": // waits for the unit's service
		s.engine.Decision(arg[0]).AwaitService()
	case "service":
		s.engine.Decision(arg[0]).SetService(strings.TrimPrefix(arg[1], "-")) // "-" means no service
	case "apply":
		s.engine.Decision(arg[0]).SetPolicy(s.policy(arg[1]), arg[2] == "yes")
	case "policies":
		ts, err := s.engine.SetPolicies(s.config.Monitors, s.config.Policies, s.upTo(duration(arg[0])))
		if err != nil {
			return err
		}
		s.print(ts)
		checkInvariants(s.t, s.engine)
	case "fire":
		s.fire(arg[0], s.upTo(duration(arg[1])), duration(arg[2]))
	case "alert":
		o, opened, err := s.engine.Decision(arg[0]).OpenGate(Alert{Key: arg[4], Name: arg[3]}, duration(arg[2]), s.upTo(duration(arg[1])))
		switch {
		case err != nil:
			fmt.Fprintf(&s.out, "\t%v\n", err)
		case opened:
			fmt.Fprintf(&s.out, "\topening %s until %v\n", o.ID, o.Until().Sub(start))
		default:
			fmt.Fprintf(&s.out, "\talready open: %s until %v\n", o.ID, o.Until().Sub(start))
		}
		checkInvariants(s.t, s.engine)
	case "resolve":
		if o := s.engine.Decision(arg[0]).CloseGate(arg[2], s.upTo(duration(arg[1]))); o != nil {
			fmt.Fprintf(&s.out, "\tclosed %s\n", o.ID)
		} else {
			fmt.Fprintln(&s.out, "\tnot open")
		}
		checkInvariants(s.t, s.engine)
	case "spend":
		s.engine.SpendBytes(int(number(arg[1])), s.upTo(duration(arg[0])))
	case "afford":
		fmt.Fprintf(&s.out, "\t%v\n", s.engine.Affords(int(number(arg[1])), s.upTo(duration(arg[0]))))
	case "hot":
		s.upTo(duration(arg[0]))
		for _, name := range arg[1:] {
			u, _ := s.engine.Lookup(name)
			fmt.Fprintf(&s.out, "\t%s hot=%v heat=%.4g over budget=%v\n", name, u.Hot(), u.Heat(), u.OverBudget())
		}
	case "reboot":
		s.reboot(arg)
	case "counter":
		c := s.counter(arg[0], arg[1])
		*c = Reading{Time: start.Add(duration(arg[2])), Num: number(arg[3]), Den: number(arg[4])}
		s.pending = append(s.pending, observation{arg[0], arg[1], *c})
	case "eval":
		from, to, step := span(arg[0])
		for at := from; at <= to; at += step {
			s.print(s.engine.Evaluate(s.upTo(at)))
		}
	case "profile":
		s.profile(arg)
	case "stand":
		now := s.upTo(duration(arg[1]))
		u, _ := s.engine.Lookup(arg[0])
		for _, st := range u.Conditions(nil, now) {
			s.status(st)
		}
	case "restart":
		s.upTo(duration(arg[2]))
		s.engine.Decision(arg[0]).Restart(arg[1])
	case "remove":
		s.print(s.engine.Remove(arg[0], s.upTo(duration(arg[1]))))
	case "close":
		s.print(s.engine.Close(s.upTo(duration(arg[0]))))
	case "stats":
		fmt.Fprintf(&s.out, "\tunits=%d open=%d known=%d services=%d %+v\n", s.engine.Units(), s.engine.ActiveOpenings(), len(s.engine.roster.byName), len(s.engine.services.byAccount), s.engine.Stats())
	default:
		return fmt.Errorf("unknown command %q", f[0])
	}
	return nil
}

func (s *script) policy(name string) int {
	return slices.IndexFunc(s.config.Policies, func(p Policy) bool { return p.Name == name })
}

func (s *script) counter(unit, monitor string) *Reading {
	key := unit + " " + monitor
	if s.counters[key] == nil {
		s.counters[key] = &Reading{Time: start}
	}
	return s.counters[key]
}

// use adds readings of a counter. The readings are in whole nanoseconds, like the
// counters of the kernel.
func (s *script) use(observe bool, arg []string, rise float64) {
	unit, monitor := arg[0], arg[1]
	from, to, step := span(arg[2])
	value, capacity := number(arg[3]), 1.0
	if len(arg) > 4 {
		capacity = number(strings.TrimPrefix(arg[4], "cap="))
	}
	n := slices.IndexFunc(testMonitors(), func(m Monitor) bool { return m.Name == monitor })
	m := testMonitors()[n]
	c := s.counter(unit, monitor)
	for at := from; at <= to; at += step {
		v := value
		if to > from {
			v += rise * float64(at-from) / float64(to-from)
		}
		elapsed := float64(start.Add(at).Sub(c.Time))
		c.Time = start.Add(at)
		if m.Gauge {
			c.Num = v
		} else {
			c.Num += v / max(1, m.Scale) * elapsed * capacity
			c.Den += elapsed * capacity
		}
		if observe {
			s.pending = append(s.pending, observation{unit, monitor, *c})
		}
	}
}

func (s *script) budget(name string, limit float64) {
	b := &s.config.Budgets
	switch name {
	case budget.MaxConcurrentUnits:
		b.MaxConcurrentUnits = int(limit)
	case budget.MaxTriggersPerHour:
		b.MaxTriggersPerHour = int(limit)
	case budget.MaxTriggersPerServicePerHour:
		b.MaxTriggersPerServicePerHour = int(limit)
	case budget.MaxBytesPerHour:
		b.MaxBytesPerHour = bytesize.Size(limit)
	default:
		panic("unknown budget " + name)
	}
}

func (s *script) fire(unit string, now time.Time, d time.Duration) {
	u, ok := s.engine.Lookup(unit)
	if !ok {
		u = s.engine.Decision(unit)
	}
	o, _, err := u.OpenGate(Alert{}, d, now)
	if err != nil {
		fmt.Fprintf(&s.out, "\t%v\n", err)
		return
	}
	fmt.Fprintf(&s.out, "\topening %s until %v\n", o.ID, o.Until().Sub(start))
}

// reboot replaces the engine with a new engine, which restores the stored snapshot.
func (s *script) reboot(arg []string) {
	now := s.upTo(duration(arg[0]))
	stored, err := json.Marshal(s.engine.Snapshot(now))
	require.NoError(s.t, err)
	var snapshot Snapshot
	require.NoError(s.t, json.Unmarshal(stored, &snapshot))
	if len(arg) > 1 {
		snapshot.shift(-duration(strings.TrimPrefix(arg[1], "clock=")))
	}
	s.engine, err = New(s.config)
	require.NoError(s.t, err)
	s.engine.Restore(snapshot, now)
}

// shift moves the times of a snapshot, as if the clock had jumped.
func (s *Snapshot) shift(by time.Duration) {
	s.Taken = s.Taken.Add(by)
	for _, cooldowns := range [][]Cooldown{s.Units, s.Services} {
		for i := range cooldowns {
			cooldowns[i].Until = cooldowns[i].Until.Add(by)
		}
	}
	spent := [][]budget.Spending{s.Triggers, s.Bytes}
	for _, st := range s.ServiceTriggers {
		spent = append(spent, st.Spent)
	}
	for _, spent := range spent {
		for i := range spent {
			spent[i].Time = spent[i].Time.Add(by)
		}
	}
}

func (s *script) status(st ConditionStatus) {
	fmt.Fprintf(&s.out, "\t%s %s %s %g of %g (%s) enough=%v holds=%v", st.Policy, st.State, st.Monitor, st.Value, st.Threshold, st.Window, st.Enough, st.Holds)
	if st.Guard != "" {
		fmt.Fprintf(&s.out, " guard %s", st.Guard)
	}
	if st.Off {
		fmt.Fprint(&s.out, " off")
	}
	if st.Blocked != "" {
		fmt.Fprintf(&s.out, " %s", st.Blocked)
	}
	if st.Budget != "" {
		fmt.Fprintf(&s.out, " %s", st.Budget)
	}
	if !st.NotBefore.IsZero() {
		fmt.Fprintf(&s.out, " not before %v", st.NotBefore.Sub(start))
	}
	fmt.Fprintln(&s.out)
}

func (s *script) profile(arg []string) {
	u, ok := s.engine.Lookup(arg[0])
	if !ok {
		fmt.Fprintln(&s.out, "\tunknown unit")
		return
	}
	from, to, _ := span(arg[1])
	begin, end := start.Add(from), start.Add(to)
	openings := u.Admit(nil, begin, end)
	if len(openings) == 0 {
		fmt.Fprintln(&s.out, "\tshut")
		return
	}
	for i, o := range openings {
		fmt.Fprintf(&s.out, "\t%s %s", o.ID, o.Policy)
		if i == 0 {
			fmt.Fprintf(&s.out, " %s", o.Phase(begin, end))
		}
		if o.DryRun {
			fmt.Fprintln(&s.out, " dry run")
			continue
		}
		fmt.Fprintln(&s.out)
		switch {
		case len(arg) < 3:
		case arg[2] == "accept":
			o.Accepted(10, 100)
		case arg[2] == "refuse":
			o.Refuse("")
		}
	}
}

func (s *script) print(transitions []Transition) {
	for _, x := range transitions {
		fmt.Fprintf(&s.out, "\t%v %s %s: %s -> %s, %s", x.Time.Sub(start), x.Unit.Name(), x.Policy, x.From, x.To, x.Reason)
		if x.Budget != "" {
			fmt.Fprintf(&s.out, " %s", x.Budget)
		}
		if c := x.Cause; c == (Cause{Monitor: Manual}) {
			fmt.Fprint(&s.out, ", by hand")
		} else if x.Opening != nil && x.Opening.Alert != "" {
			fmt.Fprintf(&s.out, ", by alert %s", x.Opening.Alert)
		} else if x.Opening != nil && x.Opening.Baseline {
			fmt.Fprintf(&s.out, ", baseline at %s %g of %g (%s)", c.Monitor, c.Value, c.Threshold, c.Window)
		} else if c != (Cause{}) {
			fmt.Fprintf(&s.out, ", %s %g > %g (%s)", c.Monitor, c.Value, c.Threshold, c.Window)
		}
		if o := x.Opening; o != nil {
			fmt.Fprintf(&s.out, ", opening %s", o.ID)
			if o.DryRun {
				fmt.Fprint(&s.out, " dry run")
			}
			if x.From == Profiling {
				fmt.Fprintf(&s.out, " exported %d profiles, %d samples, %d bytes, refused %d", o.Profiles, o.Samples, o.Bytes, o.Refused)
			}
		}
		if x.NothingExported {
			fmt.Fprint(&s.out, ", nothing exported")
		}
		fmt.Fprintln(&s.out)
	}
}

func parsePolicy(arg []string) Policy {
	p := Policy{Name: arg[0], Duration: duration(arg[1]), Cooldown: duration(arg[2])}
	for _, text := range arg[3:] {
		if baseline, ok := strings.CutPrefix(text, "baseline="); ok {
			every, length, _ := strings.Cut(baseline, "/")
			p.Baseline = Baseline{duration(every), duration(length)}
			continue
		}
		if text == "dry_run" {
			p.DryRun = true
			continue
		}
		monitor, rest, _ := strings.Cut(text, ">")
		threshold, window, _ := strings.Cut(rest, ":")
		c := Condition{Monitor: monitor}
		c.Threshold = number(threshold)
		window, release, releases := strings.Cut(window, "<")
		if releases {
			below := number(release)
			c.ReleaseBelow = &below
		}
		if count, period, ok := strings.Cut(window, "/"); ok {
			c.Count, c.Period = int(number(count)), duration(period)
		} else {
			c.AverageOver = duration(window)
		}
		p.Conditions = append(p.Conditions, c)
	}
	return p
}

// span parses AT, FROM..TO or FROM..TO/STEP.
func span(text string) (from, to, step time.Duration) {
	text, by, stepped := strings.Cut(text, "/")
	step = time.Second
	if stepped {
		step = duration(by)
	}
	first, last, ok := strings.Cut(text, "..")
	if !ok {
		last = first
	}
	return duration(first), duration(last), step
}

func duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return d
}

func number(text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(err)
	}
	return n
}
