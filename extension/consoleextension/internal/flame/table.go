// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package flame

import (
	"cmp"
	"slices"
	"strings"
)

// Row is a function with its values. Self is the value of the function itself.
// Total also includes the functions that the function called. Total counts each
// sample once, even with recursion.
type Row struct {
	Function
	Line        int32 // line with the largest value; 0 if not known
	Self, Total Value
}

// Order is the column by which a table is sorted.
type Order string

// Tables can be sorted in these orders. BySelfDifference and ByTotalDifference compare the
// shares of a function in the two profiles. The function whose share grew most comes
// first.
const (
	BySelf            Order = "self"
	ByTotal           Order = "total"
	ByName            Order = "name"
	BySelfDifference  Order = "self_diff"
	ByTotalDifference Order = "total_diff"
)

// Table lists the functions of a profile.
type Table struct {
	Total Value
	Rows  []Row
	// Matching is the number of functions that match the search. Functions is the total
	// number of functions.
	Matching, Functions int
}

// Table returns at most limit functions whose names contain search, ignoring case.
func (q Query) Table(order Order, search string, limit int) Table {
	here, there := sideOf(q.Of, q.Filter), sideOf(q.base(), q.BaseFilter)
	t := Table{Total: Value{here.totals[0], there.totals[0]}}
	x, y := here.functions(), there.functions()
	search = strings.ToLower(search)
	for i, j := range pairs(0, int32(len(x)), 0, int32(len(y)), func(i, j int32) int { return cmp.Compare(here.s.names[i], there.s.names[j]) }) {
		var r Row
		if j >= 0 {
			f := y[j]
			r.Function = Function{there.s.names[j], there.s.files[j]}
			r.Line, r.Self.There, r.Total.There = f.line, f.self, f.total
		}
		if i >= 0 {
			f := x[i]
			if f.total > 0 || j < 0 {
				r.Function = Function{here.s.names[i], here.s.files[i]}
				r.Line = f.line
			}
			r.Self.Here, r.Total.Here = f.self, f.total
		}
		if r.Total == (Value{}) {
			continue
		}
		t.Functions++
		if search == "" || strings.Contains(strings.ToLower(r.Name), search) {
			t.Rows = append(t.Rows, r)
		}
	}
	t.Matching = len(t.Rows)
	slices.SortStableFunc(t.Rows, func(a, b Row) int { return t.compare(order, a, b) })
	if len(t.Rows) > limit {
		t.Rows = slices.Clone(t.Rows[:limit])
	}
	return t
}

// compare compares two rows. Equal rows stay sorted by name.
func (t Table) compare(order Order, a, b Row) int {
	difference := func(v Value) float64 {
		here, there := v.Share(t.Total)
		return here - there
	}
	switch order {
	case ByName:
		return cmp.Compare(a.Name, b.Name)
	case ByTotal:
		return cmp.Or(cmp.Compare(b.Total.Here, a.Total.Here), cmp.Compare(b.Self.Here, a.Self.Here))
	case BySelfDifference:
		return cmp.Or(cmp.Compare(difference(b.Self), difference(a.Self)), cmp.Compare(difference(b.Total), difference(a.Total)))
	case ByTotalDifference:
		return cmp.Or(cmp.Compare(difference(b.Total), difference(a.Total)), cmp.Compare(difference(b.Self), difference(a.Self)))
	default:
		return cmp.Or(cmp.Compare(b.Self.Here, a.Self.Here), cmp.Compare(b.Total.Here, a.Total.Here))
	}
}

// functionValue is the value of a function in one of the two profiles.
type functionValue struct {
	self, total int64
	most        int64 // largest value of one frame; line is the line of this frame
	line        int32
}

// functions returns the values of each function.
func (s side) functions() []functionValue {
	out := make([]functionValue, len(s.s.names))
	s.s.each(s.filter, func(one *sample) {
		if f := s.s.function[one.node]; f >= 0 {
			out[f].self += one.value
		}
	})
	for n, total := range s.totals {
		if total == 0 || n == 0 || s.s.inner[n] {
			continue
		}
		f := &out[s.s.function[n]]
		f.total += total
		if total > f.most {
			f.most, f.line = total, s.s.line[n]
		}
	}
	return out
}

// Total returns the sum of all samples that the query selects.
func (q Query) Total() Value { return q.sum(func(one *sample) int64 { return one.value }) }

// Samples returns the number of samples that the query selects, or 0 if the number is
// unknown.
func (q Query) Samples() Value { return q.sum(func(one *sample) int64 { return one.samples }) }

func (q Query) sum(of func(*sample) int64) (sum Value) {
	q.Of.each(q.Filter, func(one *sample) { sum.Here += of(one) })
	q.base().each(q.BaseFilter, func(one *sample) { sum.There += of(one) })
	return sum
}

// Chance reports whether the difference between two shares may be due to chance. This is
// the case if the difference is at most two standard errors. If the number of samples of a
// profile is unknown, Chance returns false.
func Chance(here, there float64, samples Value) bool {
	if samples.Here <= 0 || samples.There <= 0 {
		return false
	}
	m, n := float64(samples.Here), float64(samples.There)
	p := (here*m + there*n) / (m + n)
	return (here-there)*(here-there) <= 4*p*(1-p)*(1/m+1/n)
}

// Part describes the samples with one value of a label.
type Part struct {
	Label   string // empty for samples without the label
	Value   Value
	Samples int64 // number of samples in the profile itself; 0 if not known
}

// Parts groups the samples by the value of a label. The largest part comes first. Parts
// ignores the query's filter for this label, so that readers can choose another value.
// Values without samples on either side are omitted.
func (q Query) Parts(label Label) []Part {
	*q.Filter.Fields()[label], *q.BaseFilter.Fields()[label] = "", ""
	type sum struct{ value, samples int64 }
	sums := func(s *Stacks, filter Filter) []sum {
		out := make([]sum, len(s.labels[label].values))
		s.each(filter, func(one *sample) {
			v := &out[one.labels[label]]
			v.value += one.value
			v.samples += one.samples
		})
		return out
	}
	var parts []Part
	index := make(map[string]int)
	for i, v := range sums(q.Of, q.Filter) {
		if v.value > 0 {
			value := q.Of.labels[label].values[i]
			index[value] = len(parts)
			parts = append(parts, Part{Label: value, Value: Value{Here: v.value}, Samples: v.samples})
		}
	}
	for i, v := range sums(q.base(), q.BaseFilter) {
		if v.value == 0 {
			continue
		}
		value := q.Base.labels[label].values[i]
		if at, ok := index[value]; ok {
			parts[at].Value.There = v.value
		} else {
			parts = append(parts, Part{Label: value, Value: Value{There: v.value}})
		}
	}
	slices.SortStableFunc(parts, func(a, b Part) int {
		return cmp.Or(cmp.Compare(b.Value.Here, a.Value.Here), cmp.Compare(b.Value.There, a.Value.There), cmp.Compare(a.Label, b.Label))
	})
	return parts
}
