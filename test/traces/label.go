// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"fmt"
	"math"
	"strings"
)

// These numbers come from docs/trigger-accuracy/labelling.md, which explains them.
const (
	hotLoad, coolLoad       = 0.9, 0.7
	hotStalls, coolStalls   = 0.5, 0.1
	shortestEpisode         = 15 // seconds
	longestSpike            = 5
	longestGap              = 2
	frequentIn, frequentHot = 60, 0.45
	warmUp                  = 30
)

// Label determines how a second counts in the score.
type Label byte

// These are all labels.
const (
	Cool Label = 'c'
	Grey Label = 'g'
	Hot  Label = 'h'
)

// Labels contains one label per second of a trace.
type Labels []Label

// LabelsOf labels a schedule by the rule in docs/trigger-accuracy/labelling.md.
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
	for _, e := range labels.Stretches(Hot) { // the start of the unit may have shortened an episode
		if e.Len() < shortestEpisode {
			labels.set(e, Grey)
		}
	}
	return labels
}

// Runs returns the hot stretches that are episodes, and the grey stretches.
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

// starts returns the seconds at which the unit starts.
func (s *Schedule) starts() (starts []int) {
	if s.Age == 0 {
		starts = append(starts, 0)
	}
	for _, d := range s.Down {
		starts = append(starts, int(math.Ceil(d.To)))
	}
	return starts
}

// judge labels each second independently of other seconds. A second is hot, cool or grey.
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

// second returns the load of a second. stalls is the share of the quota
// periods whose demand is more than the quota. up reports whether the
// cgroup exists for the whole second.
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
	// Rounding errors must not turn a load of 90 % into a smaller load.
	return math.Round(demand/steps/limit*1e6) / 1e6, float64(stalled) / periods, up
}

// Stretch is the range of seconds [From, To).
type Stretch struct{ From, To int }

// Len returns the length in seconds.
func (s Stretch) Len() int { return s.To - s.From }

// runsOf returns the runs of hot seconds. A run continues after a short gap.
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

// frequent returns the stretches in which short runs are frequent.
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

// Stretches returns the maximal stretches that have the given label.
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

// At returns the label of a moment. The last label also applies to all later moments.
func (l Labels) At(t int) Label { return l[min(t, len(l)-1)] }

// String returns the stretches in order, such as "cool 0-60, hot 60-90".
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
