// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package oncpu samples running threads.
//
// A Sampler has two goroutines. One reads the kernel's records, keeps the table
// of processes by them, turns stacks into samples and attaches what is to be
// sampled; all of that is plain code of one thread. The other looks, every
// discovery interval, for what the targets mean now, which takes reading much of
// /proc, and hands the result over.
package oncpu
