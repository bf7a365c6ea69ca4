// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package cgroup

// A WeightFormula is how a container runtime turns the CPU shares of a request
// into a cpu.weight of the v2 tree.
type WeightFormula string

// The formulas.
const (
	// WeightAuto finds out which of the two it was.
	WeightAuto WeightFormula = "auto"
	// WeightLinear is that of runc before 1.3.2 and of crun before 1.23: one core
	// is a weight of 39.
	WeightLinear WeightFormula = "linear"
	// WeightNew is that of runc from 1.3.2 and of crun from 1.23 on: one core is
	// a weight of 100.
	WeightNew WeightFormula = "new"
)

// Valid says whether it is one of them.
func (f WeightFormula) Valid() bool {
	return f == WeightAuto || f == WeightLinear || f == WeightNew
}
