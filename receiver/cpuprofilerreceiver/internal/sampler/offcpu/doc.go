// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package offcpu samples threads that do not run. It measures where and how long they
// block, and how long they wait for a CPU although they could run. A perf event counts the
// context switches of its target's threads. It samples the stack of a thread that leaves
// its CPU. A record of every switch has the times at which the thread left and came back.
//
// # What a wait is
//
// A wait lasts from a switch off a CPU to the same thread's next switch onto any CPU. A
// thread that left while it could have run waited for a CPU. This time is run queue time,
// and all other time is off-CPU time. A blocked thread may be woken and then wait for a
// CPU. All of this is off-CPU time, because wake-ups are not recorded.
//
// A wait in progress at the end of a capture window is emitted up to it, and continues in
// the next window with the same stack. A wait that began before sampling started or resumed
// has an unknown length. It is counted but not emitted. While records of switches are lost,
// the state of threads is unknown. This time does not belong to any wait.
//
// # How many stacks
//
// All records of switches are read, because they have the time of each thread. Stacks are
// expensive, so their number per second is bounded. Above the bound the stack of one of n
// switches is sampled, with n drawn repeatedly at random around its mean. A thread with few
// long waits would then get no stack beside a thread that switches all the time. So a
// thread that would get less than 20 stacks per second has its own events, which sample
// each of its switches. Threads with the longest waits come first. These events cost
// little, because such threads switch rarely. In case a thread begins to switch often, the
// kernel stops its events after a few more samples. One event of a task for all CPUs is not
// used, because it could not write to the rings of the CPUs.
//
// Sampling only decides how a thread's time is divided. Within a capture window, and for
// each thread and each kind of wait,
//
//	value = length × total of all lengths × weight / total of length × weight, with a stack
//
// so that the values sum to the total of the records. The weight is n, because waits are
// sampled less often in parts of the window with a larger n. Waits with a weight of 1
// represent themselves. If the thread has no other stacks, they also share the remaining
// time. This is a ratio estimator. Its bias falls with the number of sampled waits, and is
// negligible compared to its variance from a few dozen waits on. The total of a thread
// without a stack is emitted as one sample with the frame "[no stack]".
//
// If stacks are copied, because a program has no frame pointers, 16 MiB of copies per
// second are a second bound. If stacks come faster than they are read, the rings fill up
// and stacks are lost. The switches of the host have their own rings, and so have the
// switches of cgroups if stacks are copied. Then only stacks are lost, but no time. The
// stacks of threads with their own events also have their own rings. The switches of
// processes have no rings of their own, because that would double the events per thread and
// CPU. If a round of reading has more stacks than the bound allows, only one stack of each
// thread is unwound.
//
// Events of a process count the switches of each thread separately. So they never sample a
// thread that ends within its first n switches. Events of cgroups and of the host count all
// switches of a CPU.
//
// The state machine (waits, scaler, rate) does no I/O and has no clock.
package offcpu
