// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package offcpu samples threads that do not run: where they block and for how long,
// and how long they wait for a CPU although they could run. A perf event counts the
// context switches of its target's threads; it samples the stack of the thread that
// leaves its CPU, and a record of every switch has the times at which it left and
// came back.
//
// # What a wait is
//
// A wait lasts from a switch off a CPU to the same thread's next switch onto one, on
// any CPU. A thread that left while it could have run waited for a CPU: that time
// belongs to the run queue, all other is off-CPU time. For a blocked thread that was
// woken and then waited for a CPU both are off-CPU time, since wake-ups are not
// recorded.
//
// A wait in progress at the end of a window is emitted up to it, and continues in
// the next window with the same stack. A wait whose beginning was not seen, because
// it began before sampling started or resumed, or before records were lost, has no
// stack: it is counted and not emitted.
//
// # How many stacks
//
// Records of switches are all read. Stacks are expensive, so their number per second
// is bounded: above the bound the stack of one of n switches is sampled, with n
// drawn at random around its mean again and again, and the waits without a stack are
// shared out. Within a window, or a part of one with one mean, and for each process
// and each kind of wait,
//
//	value = length × total of all lengths / total of the lengths with a stack
//
// so that the values sum to the total of the records. That is a ratio estimator: its
// bias falls with the number of sampled waits, and is negligible beside its variance
// from a few dozen on. The total of a process of which no wait was sampled is
// carried over to the next window.
//
// If stacks are copied, because a program has no frame pointers, the bound is the
// lower of that and of 16 MiB of copies per second: copies take their full size in
// the ring that holds the switch records too.
//
// Events of a process count the switches of each thread separately, and so never
// sample a thread that ends within its first n; events of cgroups and of the host
// count all switches of a CPU.
//
// The state machine (waits, scaler, rate) does no I/O and has no clock.
package offcpu
