// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package fidelity compares our profiles of a program with the results of other tools
// for the same run. The distribution of time over functions is compared with Go's own
// CPU profile and with perf record. The total time is compared with the kernel's own
// accounting.
//
// Two samplers take samples at different moments, so their figures always differ by
// chance. Chance and TotalChance compute the allowed difference from the numbers of
// samples. In addition to this difference, a function's share may differ by 2 points,
// and a total may differ by 1 %.
package fidelity
