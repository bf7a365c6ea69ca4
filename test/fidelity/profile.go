// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package fidelity

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Profile holds the stacks in which one sampler saw a program.
type Profile struct {
	Samples []Sample
}

// Sample is a stack and how often it was seen.
type Sample struct {
	// Stack has the leaf first.
	Stack []Frame
	Count int
}

// Frame is one frame of the machine's stack: the function that it belongs to, and
// before it those that were inlined into it, the innermost first.
type Frame struct {
	Functions []string
	Kernel    bool
}

// Outer is the function that the frame belongs to.
func (f Frame) Outer() string { return f.Functions[len(f.Functions)-1] }

// Total returns the number of samples.
func (p Profile) Total() (n int) {
	for _, s := range p.Samples {
		n += s.Count
	}
	return n
}

// User is the profile as seen from user mode: time in the kernel counts for the
// function that called it.
func (p Profile) User() (out Profile) {
	for _, s := range p.Samples {
		s.Stack = slices.DeleteFunc(slices.Clone(s.Stack), func(f Frame) bool { return f.Kernel })
		out.Samples = append(out.Samples, s)
	}
	return out
}

// Without is the profile without the samples that have a function on the stack.
func (p Profile) Without(function string) (out Profile) {
	for _, s := range p.Samples {
		if !slices.ContainsFunc(s.Stack, func(f Frame) bool { return slices.Contains(f.Functions, function) }) {
			out.Samples = append(out.Samples, s)
		}
	}
	return out
}

// Renamed returns the profile with other names. A function with an empty new name is
// removed.
func (p Profile) Renamed(name func(string) string) (out Profile) {
	for _, s := range p.Samples {
		var stack []Frame
		for _, f := range s.Stack {
			var functions []string
			for _, old := range f.Functions {
				if now := name(old); now != "" {
					functions = append(functions, now)
				}
			}
			if len(functions) > 0 {
				stack = append(stack, Frame{Functions: functions, Kernel: f.Kernel})
			}
		}
		s.Stack = stack
		out.Samples = append(out.Samples, s)
	}
	return out
}

// Physical is the profile without the functions that were inlined.
func (p Profile) Physical() (out Profile) {
	for _, s := range p.Samples {
		stack := slices.Clone(s.Stack)
		for i, f := range stack {
			stack[i].Functions = []string{f.Outer()}
		}
		s.Stack = stack
		out.Samples = append(out.Samples, s)
	}
	return out
}

// A Count counts samples by a name.
type Count func(Profile) map[string]int

// Self counts samples by the function that was running.
func Self(p Profile) map[string]int {
	return p.count(func(s Sample) []string { return s.Stack[0].Functions[:1] })
}

// Cumulative counts samples by each function on the stack, once however often it
// is there.
func Cumulative(p Profile) map[string]int {
	return p.count(func(s Sample) (all []string) {
		for _, f := range s.Stack {
			all = append(all, f.Functions...)
		}
		return all
	})
}

// Inlined counts samples by each frame into which something was inlined: the
// names in it, the innermost first.
func Inlined(p Profile) map[string]int {
	return p.count(func(s Sample) (all []string) {
		for _, f := range s.Stack {
			if len(f.Functions) > 1 {
				all = append(all, strings.Join(f.Functions, " < "))
			}
		}
		return all
	})
}

func (p Profile) count(names func(Sample) []string) map[string]int {
	counts := make(map[string]int)
	for _, s := range p.Samples {
		if len(s.Stack) == 0 {
			continue
		}
		all := names(s)
		slices.Sort(all)
		for _, name := range slices.Compact(all) {
			counts[name] += s.Count
		}
	}
	return counts
}

// Row is one name in two profiles.
type Row struct {
	Name         string
	Ours, Theirs float64 // shares
	// Apart is the allowed difference.
	Apart float64
}

// Disagrees reports whether the difference is larger than that.
func (r Row) Disagrees() bool { return max(r.Ours-r.Theirs, r.Theirs-r.Ours) > r.Apart }

// Compare holds the names that have at least share in one of the profiles against
// each other, the largest first.
func Compare(ours, theirs Profile, count Count, share float64) (rows []Row) {
	a, b := count(ours), count(theirs)
	n, m := ours.Total(), theirs.Total()
	names := maps.Clone(a)
	maps.Copy(names, b)
	maps.DeleteFunc(names, func(name string, _ int) bool {
		return float64(a[name]) < share*float64(n) && float64(b[name]) < share*float64(m)
	})
	z := Z(len(names))
	for name := range names {
		rows = append(rows, Row{
			Name: name, Ours: float64(a[name]) / float64(max(n, 1)), Theirs: float64(b[name]) / float64(max(m, 1)),
			Apart: Points + Chance(a[name], n, b[name], m, z),
		})
	}
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Or(cmp.Compare(b.Ours, a.Ours), cmp.Compare(a.Name, b.Name)) })
	return rows
}
