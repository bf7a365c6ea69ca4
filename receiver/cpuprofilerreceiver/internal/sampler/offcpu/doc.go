// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package offcpu is the sampler of threads that do not run: where they block and
// for how long, and how long they wait for a CPU though they could run. A perf
// event counts the switches of its target's threads; it samples the stack of the
// thread that leaves its CPU, and a record of every switch tells when it left and
// came back.
//
// # What a wait is
//
// A wait lasts from a switch off a CPU to the same thread's next switch onto one,
// wherever that is. A thread that left while it could have run waited for a CPU:
// that time is the run queue's, all other is off-CPU time. A blocked thread that
// was woken and then waited for a CPU was off-CPU for both, as nothing tells of
// wake-ups.
//
// A wait in progress at the end of a window is shown up to it, and goes on in the
// next one with the same stack. One whose beginning was not seen, because it was
// under way when sampling began, went on, or had lost records, has no stack: it
// is counted and not shown.
//
// # How many stacks
//
// Records of switches are all read. Stacks are what costs, so their number per
// second is bounded: above the bound the stack of one of n switches is sampled,
// with n drawn anew at random around its mean again and again, and the waits
// without a stack are shared out. Within a window, or a part of one with one
// mean, and for each process and each kind of wait,
//
//	value = length × total of all lengths / total of the lengths with a stack
//
// so that the values sum to what the records say. That is a ratio estimator: its
// bias falls with the number of sampled waits, and is nothing to its variance
// from a few dozen on. A process of which no wait was sampled has its total
// carried over to the next window.
//
// Where stacks are copied, since frame pointers do not lead through a program, the
// bound is the lower of that and of 16 MiB of copies per second: each takes its
// whole size of the ring that the switches' records are in too.
//
// Events of a process count each thread's switches by themselves, and so never
// sample a thread that ends within its first n; those of cgroups and of the host
// count all of a CPU's.
//
// The state machine in here (waits, scaler, rate) does no I/O and has no clock.
package offcpu
