// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package allocs samples the allocations of Go programs. The samples show which code
// allocates memory, the number of allocated objects, and their size in bytes.
//
// Go's runtime itself samples allocations for its heap profile. It samples one allocation
// per runtime.MemProfileRate bytes on average, which is 512 KiB unless the program sets
// it. The runtime calls runtime.profilealloc(mp, x, size) only for sampled allocations. A
// uprobe on this function reads the stack and the size, which is the size of the object's
// slot. A sampled allocation therefore stops the program for 1 to 2 µs, and other
// allocations do not stop it. The uprobe is in the program's file, so all processes of a
// program share it. The reader drops hits of processes that are not wanted.
//
// # Meaning of the values
//
// The runtime draws the distance to the next sampled byte from an exponential
// distribution with mean rate. An allocation of size bytes is therefore sampled with
// probability p = 1 − e^(−size/rate), independently of earlier allocations. Each sampled
// allocation represents 1/p objects and size/p bytes. The sums over any part of the
// program are unbiased (Horvitz and Thompson). At each search, the sampler reads the rate
// from the program's memory. If the symbol or the right to read the memory is missing,
// the sampler assumes 512 KiB and marks this assumption in the profile's type. The
// runtime combines tiny objects into 16-byte blocks. The runtime samples only the block,
// so the block is counted instead of its objects.
//
// The limit on samples applies next. Of a process's samples between two calls of Flush,
// at most max(1, Limit × Interval / 60 s) are kept, by reservoir sampling (algorithm R).
// Each of the n samples is kept with the same probability k/n, and each kept value is
// multiplied by n/k. The scaled sums are therefore unbiased too, and the number of
// samples never exceeds the limit. Values are rounded at random to one of the two
// adjacent integers, with probabilities that keep the mean. Rounding to the nearest
// integer would be wrong by up to a quarter for objects larger than the rate.
//
// # Stacks
//
// The kernel unwinds the stacks by frame pointers, which Go code keeps, down to the entry
// of the goroutine. No stack is copied. A Go function that C has called runs on the
// goroutine's stack, but its frame pointers lead to C frames on the thread's stack. If
// the C code has no frame pointers, the stack ends there and is marked as truncated.
//
// # Limitations
//
// There are no samples of a program without the memory profiler (without a reference to
// runtime.MemProfile), or with a rate of 0. The sampler logs such a program once.
// Programs of Go releases with an unknown layout are refused, and the release is logged.
// The sampler does not search for a runtime in a shared library (-linkshared, c-shared).
// Memory outside Go's heap is not sampled.
package allocs
