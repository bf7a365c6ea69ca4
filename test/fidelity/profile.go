// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package fidelity

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Profile holds the samples that one sampler took of a program.
type Profile struct {
	Samples []Sample
}

// Sample is a stack with the number of its samples.
type Sample struct {
	// Stack begins with the leaf.
	Stack []Frame
	Count int
}

// Frame is one physical frame of a stack. The last of Functions is the function
// that the frame belongs to. The functions before it were inlined, and the
// innermost function comes first.
type Frame struct {
	Functions []string
	Kernel    bool
}

// Outer returns the function that the frame belongs to.
func (f Frame) Outer() string { return f.Functions[len(f.Functions)-1] }

// Total returns the number of samples.
func (p Profile) Total() (n int) {
	for _, s := range p.Samples {
		n += s.Count
	}
	return n
}

// User returns the profile without kernel frames. Time in the kernel is attributed to the
// function that called the kernel.
func (p Profile) User() (out Profile) {
	for _, s := range p.Samples {
		s.Stack = slices.DeleteFunc(slices.Clone(s.Stack), func(f Frame) bool { return f.Kernel })
		out.Samples = append(out.Samples, s)
	}
	return out
}

// Without returns the profile without the samples that have the function on the stack.
func (p Profile) Without(function string) (out Profile) {
	for _, s := range p.Samples {
		if !slices.ContainsFunc(s.Stack, func(f Frame) bool { return slices.Contains(f.Functions, function) }) {
			out.Samples = append(out.Samples, s)
		}
	}
	return out
}

// Renamed returns the profile with new function names. A function
// whose new name is empty is removed.
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

// Physical returns the profile without inlined functions.
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

// A Count function returns the number of samples for each name.
type Count func(Profile) map[string]int

// Self counts the samples in which a function was running.
func Self(p Profile) map[string]int {
	return p.count(func(s Sample) []string { return s.Stack[0].Functions[:1] })
}

// Cumulative counts the samples in which a function is on the stack. A function that is
// on the stack several times is counted once.
func Cumulative(p Profile) map[string]int {
	return p.count(func(s Sample) (all []string) {
		for _, f := range s.Stack {
			all = append(all, f.Functions...)
		}
		return all
	})
}

// Inlined counts the samples of frames with inlined functions. The key of a frame is the
// list of its functions, beginning with the innermost.
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

// Row compares one name in two profiles.
type Row struct {
	Name         string
	Ours, Theirs float64 // shares
	// Apart is the allowed difference.
	Apart float64
}

// Disagrees reports whether the difference is larger than Apart.
func (r Row) Disagrees() bool { return max(r.Ours-r.Theirs, r.Theirs-r.Ours) > r.Apart }

// Compare returns a row for each name that has at least share in one of the profiles.
// Rows are sorted by our share, beginning with the largest.
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
