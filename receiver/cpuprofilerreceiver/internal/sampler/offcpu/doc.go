// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Package offcpu samples threads that are not running. It measures where and how long
// threads block, and how long runnable threads wait for a CPU. A perf event counts the
// context switches of its target's threads, and samples the stack of a thread that leaves
// its CPU. A record of every switch contains the time at which a thread left its CPU or
// returned.
//
// # Definition of a wait
//
// A wait lasts from a switch off a CPU to the same thread's next switch onto any CPU. A
// preempted thread waits for a CPU, so its wait is run queue time. All other waits are
// off-CPU time. A blocked thread may be woken and then wait for a CPU. The whole wait is
// still off-CPU time, because wake-ups are not recorded.
//
// If a wait is in progress when a capture window ends, the elapsed part of the wait is
// emitted. The wait continues in the next window with the same stack. A wait that began
// before sampling started or resumed has an unknown length, so it is counted but not
// emitted. While records of switches are lost, the state of threads is unknown. The time
// of these losses belongs to no wait.
//
// # Number of stacks
//
// All records of switches are read, because they contain the times of each thread. Stacks
// are expensive, so their number per second is bounded. Above the bound, the stack of one
// of n switches is sampled. n is redrawn at random around its mean. A thread with few
// long waits would then get no stack while another thread switches all the time.
// Therefore, a thread that would get fewer than 20 stacks per second has its own events,
// which sample each of its switches. Threads with the longest waits have priority. These
// events cost little, because such threads switch rarely. If a thread begins to switch
// often, the kernel stops its events after a few more samples. Each thread needs one
// event per CPU, because a single event for all CPUs cannot write to the rings of the
// CPUs.
//
// Sampling only affects how a thread's time is divided among its stacks. Within a capture
// window, and for each thread and kind of wait,
//
//	value = length × total of all lengths × weight / total of length × weight, with a stack
//
// so the values sum to the total of the records. The weight is n, because waits are
// sampled less often while n is larger. Waits with a weight of 1 represent themselves. If
// the thread has no other stacks, the waits with a weight of 1 also share the remaining
// time. This formula is a ratio estimator, whose bias falls with the number of sampled
// waits. From a few dozen waits on, the bias is negligible compared to the variance. If a
// thread has no stack, its total is emitted as one sample with the frame "[no stack]".
//
// Stacks are copied if a program has no frame pointers. In this case, there is a second
// bound of 16 MiB of copies per second. If stacks arrive faster than they are read, the
// rings fill up and stacks are lost. The switches of the host have their own rings. If
// stacks are copied, the switches of cgroups have their own rings too, so that no time is
// lost when stacks are lost. The stacks of threads with their own events also have their
// own rings. The switches of processes share a ring with stacks, because separate rings
// would double the events per thread and CPU. If a round of reading contains more stacks
// than the bound allows, only one stack of each thread is unwound.
//
// # Interpreted frames
//
// Frames of Python and PHP are outside the native stack, and do not change while their
// thread waits. They are read at the end of a round, from threads that still wait. If the
// thread got a CPU before the frames were read, the frames are dropped.
//
// # Processes
//
// The events of a process count the switches of each thread separately, so a thread that
// ends within its first n switches is never sampled. The events of cgroups and of the
// host count all switches on a CPU.
//
// The state machine (waits, scaler, rate) does no I/O and has no clock.
package offcpu
