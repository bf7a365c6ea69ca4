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
// A wait in progress at the end of a capture window is emitted up to it, and continues in
// the next one with the same stack. A wait whose beginning was not seen, because
// it began before sampling started or resumed, is counted and not emitted: its length
// is unknown. While records of switches are lost, what threads do is unknown, and that
// time is in no wait.
//
// # How many stacks
//
// Records of switches are all read: they are the time of each thread. Stacks are
// expensive, so their number per second is bounded: above the bound the stack of one
// of n switches is sampled, with n drawn at random around its mean again and again. A
// thread with few long waits would get none beside one that switches all the time, so
// time decides: a thread that would get less than 20 stacks a second has events of its
// own that sample each of its switches, those with the longest waits first. They cost
// little, since such threads switch rarely; the kernel stops them after a few samples
// more than that, in case the thread does not any more. Tasks do not have one event for
// all CPUs here: it could not write to the rings of the CPUs.
//
// Sampling decides only how a thread's time is split. Within a capture window, and for each
// thread and each kind of wait,
//
//	value = length × total of all lengths × weight / total of length × weight, with a stack
//
// so that the values sum to the total of the records. The weight is n, by which waits
// are sampled less often in parts of the window with a larger n. Waits of which each was
// sampled stand for themselves; if the thread has no other stacks, they share the rest
// too. This is a ratio estimator: its bias falls with the number of sampled waits, and
// is negligible beside its variance from a few dozen on. The total of a thread without
// a stack is emitted as one sample that says so.
//
// If stacks are copied, because a program has no frame pointers, the bound is the
// lower of that and of 16 MiB of copies per second. Where stacks come faster than they
// are read, the rings are full and stacks are lost. The switches of the host and, if
// stacks are copied, of cgroups have rings of their own, so that this costs stacks and
// no time; so have the stacks of threads with events of their own. The switches of
// processes do not: that would be twice as many events per thread and CPU. If a round
// of reading has more stacks than the bound allows, one of each thread is unwound.
//
// Events of a process count the switches of each thread separately, and so never
// sample a thread that ends within its first n; events of cgroups and of the host
// count all switches of a CPU.
//
// The state machine (waits, scaler, rate) does no I/O and has no clock.
package offcpu
