// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Threads that spend their CPU time in functions of known shares: for each line
// of the input, until as many CPU seconds as it says are used up.
// Then it says from when to when that was, in nanoseconds.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

static volatile unsigned long sink;
static double seconds;
static int zero;

static long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static double used(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static inline __attribute__((always_inline)) unsigned long mix(unsigned long x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdUL;
	return x ^ x >> 33;
}

NOINLINE void hash(unsigned long n)
{
	unsigned long h = n;
	for (unsigned long i = 0; i < n; i++)
		h = mix(h + i);
	sink += h;
}

NOINLINE void divide(unsigned long n)
{
	unsigned long h = n | 1;
	for (unsigned long i = 0; i < n; i++)
		h = (h + 0x9e3779b97f4a7c15UL) / (i + 3) + h;
	sink += h;
}

NOINLINE unsigned long recurse(unsigned n)
{
	if (n < 2)
		return n + (sink & 1);
	return recurse(n - 1) + recurse(n - 2) + 1;
}

NOINLINE void copy_zeros(int n)
{
	static __thread char buffer[1 << 16];
	for (int i = 0; i < n; i++)
		if (read(zero, buffer, sizeof(buffer)) < 0)
			abort();
	sink += buffer[7];
}

static int compare(const void *a, const void *b)
{
	unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
	return x < y ? -1 : x > y;
}

NOINLINE void sort(unsigned n)
{
	static __thread unsigned numbers[4096];
	for (unsigned i = 0; i < n; i++)
		numbers[i] = mix(i + sink);
	qsort(numbers, n, sizeof(*numbers), compare);
	sink += numbers[n / 2];
}

NOINLINE void a_lot(void) { hash(800000); sink++; }
NOINLINE void a_little(void) { hash(300000); sink++; }

NOINLINE void once(void)
{
	a_lot();
	a_little();
	divide(300000);
	sink += recurse(23);
	copy_zeros(300);
	sort(4096);
}

NOINLINE void *worker(void *arg)
{
	while (used() < seconds)
		once();
	return arg;
}

int main(void)
{
	char line[32];
	pthread_t all[2];
	zero = open("/dev/zero", O_RDONLY);
	if (zero < 0)
		return 1;
	while (fgets(line, sizeof(line), stdin)) {
		long from = now();
		seconds = used() + atof(line);
		for (int i = 0; i < 2; i++)
			if (pthread_create(&all[i], 0, worker, 0))
				return 1;
		for (int i = 0; i < 2; i++)
			pthread_join(all[i], 0);
		printf("%ld %ld\n", from, now());
		fflush(stdout);
	}
	return 0;
}
