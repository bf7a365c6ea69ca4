// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package fidelity holds what our sampler says of a program against what others
// say of the same run: Go's own CPU profile and perf record on which functions
// the time went to, and the kernel's own accounting on how much it was.
//
// Two samplers look at different moments, so their figures differ for no reason
// at all. How much that may be follows from how many samples each of them has:
// Chance and TotalChance say it. Beyond that, 2 points are granted to a function's
// share and one hundredth to a total.
package fidelity
