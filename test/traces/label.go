// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"fmt"
	"math"
	"strings"
)

// The numbers of docs/trigger-accuracy/labelling.md, which argues for them.
const (
	hotLoad, coolLoad       = 0.9, 0.7
	hotStalls, coolStalls   = 0.5, 0.1
	shortestEpisode         = 15 // seconds
	longestSpike            = 5
	longestGap              = 2
	frequentIn, frequentHot = 60, 0.45
	warmUp                  = 30
)

// A Label is how a second counts in the score.
type Label byte

// The labels.
const (
	Cool Label = 'c'
	Grey Label = 'g'
	Hot  Label = 'h'
)

// Labels has one label per second of a trace.
type Labels []Label

// LabelsOf labels a schedule by the rule.
func LabelsOf(s *Schedule) Labels {
	seconds := s.judge()
	labels := make(Labels, s.Seconds)
	for i, second := range seconds {
		labels[i] = Cool
		if second == Grey {
			labels[i] = Grey
		}
	}
	hot, grey := s.runs(seconds)
	for _, r := range grey {
		for i := r.From; i < r.To; i++ {
			labels[i] = Grey
		}
	}
	for _, r := range hot {
		labels.set(r, Hot)
	}
	for _, start := range s.starts() {
		labels.set(Stretch{start, min(start+warmUp, s.Seconds)}, Grey)
	}
	for _, e := range labels.Stretches(Hot) { // what the first seconds left of one
		if e.Len() < shortestEpisode {
			labels.set(e, Grey)
		}
	}
	return labels
}

// Runs are the stretches of hot time that are episodes, and those that are grey.
func (s *Schedule) Runs() (hot, grey []Stretch) { return s.runs(s.judge()) }

func (s *Schedule) runs(seconds []Label) (hot, grey []Stretch) {
	var short []Stretch
	for _, r := range runsOf(seconds) {
		switch {
		case r.Len() >= shortestEpisode:
			hot = append(hot, r)
			continue
		case r.Len() > longestSpike:
			grey = append(grey, r)
		}
		short = append(short, r)
	}
	return hot, append(grey, frequent(short, len(seconds))...)
}

// starts are the seconds at which the unit begins to live.
func (s *Schedule) starts() (starts []int) {
	if s.Age == 0 {
		starts = append(starts, 0)
	}
	for _, d := range s.Down {
		starts = append(starts, int(math.Ceil(d.To)))
	}
	return starts
}

// judge labels every second by itself as hot, cool, or between.
func (s *Schedule) judge() []Label {
	seconds := make([]Label, s.Seconds)
	for i := range seconds {
		switch load, stalls, up := s.second(i); {
		case !up:
			seconds[i] = Grey
		case load >= hotLoad || stalls >= hotStalls:
			seconds[i] = Hot
		case load <= coolLoad && stalls <= coolStalls:
			seconds[i] = Cool
		default:
			seconds[i] = Grey
		}
	}
	return seconds
}

// second is the load of a second and the share of its quota periods that ask
// for more than the quota.
func (s *Schedule) second(second int) (load, stalls float64, up bool) {
	const steps, periods = stepsPerSecond, stepsPerSecond / stepsPerPeriod
	var demand, limit float64
	limit = math.Inf(1)
	up = true
	stalled := 0
	for p := range periods {
		var wanted, quota float64
		for i := range stepsPerPeriod {
			t := float64(second) + float64(p*stepsPerPeriod+i)/steps
			wanted += s.Demand(t)
			quota += s.Limit(t)
			limit = min(limit, s.Limit(t))
			up = up && !s.IsDown(t)
		}
		demand += wanted
		if s.Quotaed(float64(second)) && wanted > quota*(1+1e-9) {
			stalled++
		}
	}
	if s.Serial {
		limit = min(limit, 1)
	}
	// Rounding must not put a load of 90 % below it.
	return math.Round(demand/steps/limit*1e6) / 1e6, float64(stalled) / periods, up
}

// A Stretch is the seconds [From, To).
type Stretch struct{ From, To int }

// Len is its length in seconds.
func (s Stretch) Len() int { return s.To - s.From }

// runsOf finds the runs of hot seconds, over gaps that are short.
func runsOf(seconds []Label) (runs []Stretch) {
	for _, r := range Labels(seconds).Stretches(Hot) {
		if len(runs) > 0 {
			last := &runs[len(runs)-1]
			gap := r.From - last.To
			if gap <= longestGap && 5*gap <= min(last.Len(), r.Len()) {
				last.To = r.To
				continue
			}
		}
		runs = append(runs, r)
	}
	return runs
}

// frequent finds where short runs come so often that they are no exception.
func frequent(runs []Stretch, seconds int) (stretches []Stretch) {
	hot := make([]bool, seconds)
	for _, r := range runs {
		for i := r.From; i < r.To; i++ {
			hot[i] = true
		}
	}
	for from := 0; from+frequentIn <= seconds; from++ {
		first, last, n := -1, 0, 0
		for i := from; i < from+frequentIn; i++ {
			if hot[i] {
				if first < 0 {
					first = i
				}
				last = i
				n++
			}
		}
		if float64(n) < frequentHot*frequentIn {
			continue
		}
		if k := len(stretches) - 1; k >= 0 && first <= stretches[k].To {
			stretches[k].To = max(stretches[k].To, last+1)
		} else {
			stretches = append(stretches, Stretch{first, last + 1})
		}
	}
	return stretches
}

func (l Labels) set(s Stretch, label Label) {
	for i := s.From; i < s.To; i++ {
		l[i] = label
	}
}

// Stretches returns the maximal stretches of a label.
func (l Labels) Stretches(label Label) (stretches []Stretch) {
	for i, is := range l {
		switch {
		case is != label:
		case i > 0 && l[i-1] == label:
			stretches[len(stretches)-1].To++
		default:
			stretches = append(stretches, Stretch{i, i + 1})
		}
	}
	return stretches
}

// At is the label of a moment; the trace's last second goes on.
func (l Labels) At(t int) Label { return l[min(t, len(l)-1)] }

// String writes the stretches in order, as in "cool 0-60, hot 60-90".
func (l Labels) String() string {
	var parts []string
	for i := 0; i < len(l); {
		from := i
		for i < len(l) && l[i] == l[from] {
			i++
		}
		parts = append(parts, fmt.Sprintf("%s %d-%d", l[from], from, i))
	}
	return strings.Join(parts, ", ")
}

func (l Label) String() string {
	switch l {
	case Cool:
		return "cool"
	case Grey:
		return "grey"
	case Hot:
		return "hot"
	}
	return "invalid"
}
