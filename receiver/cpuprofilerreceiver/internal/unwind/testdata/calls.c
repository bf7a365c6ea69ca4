// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Calls of many kinds, for a minute: recursion, callbacks of the C library, a
// signal handler, variable frames, an aligned frame, threads, system calls.

#include <alloca.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned sink;

__attribute__((noinline)) static unsigned spin(unsigned n)
{
	unsigned x = n;
	for (unsigned i = 0; i < n; i++)
		x = x * 1664525u + 1013904223u;
	return x;
}

__attribute__((noinline)) static unsigned recurse(unsigned depth)
{
	unsigned x = depth ? recurse(depth - 1) : spin(20000);
	return x + spin(100);
}

static int compare(const void *a, const void *b)
{
	unsigned x = spin(20 + *(const unsigned *)a % 7), y = *(const unsigned *)b;
	return (x > y) - (x < y);
}

__attribute__((noinline)) static unsigned sort(void)
{
	unsigned values[256];
	for (unsigned i = 0; i < 256; i++)
		values[i] = spin(i);
	qsort(values, 256, sizeof values[0], compare);
	return values[17];
}

__attribute__((noinline)) static unsigned variable(unsigned n)
{
	char *p = alloca(64 + n % 512);
	memset(p, (int)n, 64 + n % 512);
	return (unsigned)p[n % 64] + spin(3000);
}

__attribute__((noinline)) static unsigned aligned(unsigned n)
{
	_Alignas(64) volatile char buffer[256];
	buffer[n % 256] = (char)n;
	return (unsigned)buffer[n % 256] + spin(3000);
}

__attribute__((noinline)) static unsigned system_calls(void)
{
	unsigned x = 0;
	for (int i = 0; i < 20; i++)
		x += (unsigned)getppid();
	return x;
}

__attribute__((noinline)) static unsigned library(void)
{
	char text[256];
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	int n = snprintf(text, sizeof text, "%f %s %ld", sin((double)now.tv_nsec), "text", now.tv_sec);
	char *copy = malloc((size_t)n + 1);
	memcpy(copy, text, (size_t)n + 1);
	unsigned x = (unsigned)strtoul(copy, NULL, 10) + (unsigned)strlen(copy);
	free(copy);
	return x;
}

static void on_signal(int signal)
{
	sink += spin(30000) + (unsigned)signal;
}

static void *work(void *argument)
{
	for (unsigned i = 0;; i++) {
		sink += recurse(i % 40);
		sink += sort();
		sink += variable(i);
		sink += aligned(i);
		sink += system_calls();
		for (int j = 0; j < 20; j++)
			sink += library();
	}
	return argument;
}

int main(void)
{
	alarm(60);
	signal(SIGPROF, on_signal);
	struct itimerval often = {{0, 5000}, {0, 5000}};
	setitimer(ITIMER_PROF, &often, NULL);
	pthread_t thread;
	pthread_create(&thread, NULL, work, NULL);
	work(NULL);
	return 0;
}
