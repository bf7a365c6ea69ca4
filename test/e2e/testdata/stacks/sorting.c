// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Sorts numbers: the C library calls back into the program.

#include <stdlib.h>

static unsigned seed = 1;

__attribute__((noinline)) int compare(const void *a, const void *b) {
	int x = *(const int *)a, y = *(const int *)b, order = 0;
	for (int i = 0; i < 3; i++) {
		order += (x > y) - (x < y);
	}
	return order;
}

__attribute__((noinline)) int sort(int *values, size_t n) {
	for (size_t i = 0; i < n; i++) {
		seed = seed * 1103515245 + 12345;
		values[i] = (int)(seed >> 8);
	}
	qsort(values, n, sizeof *values, compare);
	return values[n / 2];
}

int main(void) {
	enum { n = 20000 };
	int *values = malloc(n * sizeof *values);
	volatile int median = 0;
	for (;;) {
		median += sort(values, n);
	}
}
