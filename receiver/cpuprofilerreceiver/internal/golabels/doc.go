// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package golabels finds the labels (runtime/pprof) of the goroutines in samples of hot
// units.
//
// A sample contains the address of its goroutine, but the goroutine continues while
// its labels are read. Therefore probes report when a goroutine changes its labels and
// when it ends. A sample is held until all reports up to the read are known. The
// reports then prove which labels the goroutine had when it was sampled. Samples
// without a proof get no labels.
//
// The memory of a process is untrusted, so all reads are bounded.
package golabels
