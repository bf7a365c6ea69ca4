// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// freestanding burns CPU time below its entry and in a thread, without a C
// library: built with frame pointers and stripped, nothing has a name, and frame
// pointers lead to where threads begin, as they do where the C library keeps them.

#include <linux/sched.h>
#include <sys/syscall.h>

static volatile unsigned long sink;
static char stack[65536] __attribute__((aligned(16)));

__attribute__((noinline)) static void burn(void) {
	for (int i = 0; i < 100000; i++) sink += i;
}

__attribute__((noinline)) static void deeper(int n) {
	if (n > 0)
		deeper(n - 1);
	else
		burn();
	sink++;
}

__attribute__((used, noinline)) static void routine(void) {
	for (;;) {
		deeper(5);
		sink++;
	}
}

// start_in_thread is the C library's clone: the thread's own part of it has no
// caller, and says so.
void start_in_thread(long flags, void *top);
__asm__(
	".text\n"
	".globl start_in_thread\n"
	".type start_in_thread,@function\n"
	"start_in_thread:\n"
	".cfi_startproc\n"
	"	mov $56, %eax\n" // clone
	"	xor %edx, %edx\n"
	"	xor %r10d, %r10d\n"
	"	xor %r8d, %r8d\n"
	"	syscall\n"
	"	test %eax, %eax\n"
	"	jz 1f\n"
	"	ret\n"
	"1:\n"
	".cfi_endproc\n"
	".cfi_startproc\n"
	".cfi_undefined rip\n"
	"	xor %ebp, %ebp\n"
	"	call routine\n"
	"	hlt\n"
	".cfi_endproc\n"
	".size start_in_thread, .-start_in_thread\n"
	// The entry says nothing of itself.
	".globl _start\n"
	".type _start,@function\n"
	"_start:\n"
	"	xor %ebp, %ebp\n"
	"	and $-16, %rsp\n"
	"	call begin\n"
	"	hlt\n"
	".size _start, .-_start\n");

__attribute__((used)) static void begin(void) {
	start_in_thread(CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD, stack + sizeof stack);
	routine();
}
