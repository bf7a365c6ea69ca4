// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package allocs samples the allocations of Go programs: who allocates, how many
// objects and how much memory.
//
// Go's runtime samples allocations itself, one for each runtime.MemProfileRate
// bytes on average (512 KiB unless the program sets it), for its heap profile. A
// probe on runtime.profilealloc(mp, x, size), which it calls for these and for no
// others, sees each with its stack and its size, which is the size of the slot
// that the object got. So the program is stopped for a microsecond or two once
// per sampled allocation, and not at all for the others. The probe is in the
// program's file: processes of one program share it, and hits of those that are
// not wanted are left out when they are read.
//
// # What the values mean
//
// The runtime draws the distance to the next sampled byte from an exponential
// distribution with mean rate, so an allocation of size bytes is sampled with
// probability p = 1 − e^(−size/rate), whatever came before. Each sampled one
// therefore stands for 1/p objects and for size/p bytes, and the sums over any
// part of the program are unbiased (Horvitz and Thompson). The rate is the
// program's, read from its memory at each search; where its symbol or the right to
// read is missing it is taken to be 512 KiB, and the profile's type says so. An
// allocation that joins others in a 16-byte block (the runtime's tiny objects) is
// not seen by the runtime's sampling: what is counted is the block.
//
// Then the limiter: of the samples that a process has between two calls of Flush,
// at most max(1, Limit × Interval / 60 s) are kept, by reservoir sampling
// (algorithm R): each of the n seen is kept with the same probability k/n, and
// each kept value is multiplied by n/k. That is unbiased again, and a hard bound.
// Values are rounded at random to one of the two integers next to them, with
// probabilities that make the mean right: to the nearest would be wrong by up to
// a quarter for objects larger than the rate.
//
// # Stacks
//
// The kernel finds them by frame pointers, which Go code keeps, down to the entry of
// the goroutine; nothing is copied. A Go function that C has called runs on the
// goroutine's stack, but its frame pointers lead into C, on the thread's: what C
// keeps none for ends there, and is marked.
//
// # What is not seen
//
// Programs that do not link the memory profiler (nothing refers to
// runtime.MemProfile) or set the rate to 0 sample nothing; that is logged once.
// Releases whose layout is not known here are refused by name. The runtime in a
// shared library (-linkshared, c-shared) is not looked for, and neither is
// memory that is not from Go's heap.
package allocs
