// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Keeps a CPU busy in a thread called "worker" that starts after a while.
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long sink;

__attribute__((noinline)) void c_leaf(unsigned long n)
{
	for (unsigned long i = 0; i < n; i++)
		sink += i * 2654435761u;
}

__attribute__((noinline)) void *c_worker(void *arg)
{
	(void)arg;
	time_t end = time(0) + 120;
	while (time(0) < end)
		c_leaf(1000000);
	return 0;
}

int main(void)
{
	usleep(700000);
	pthread_t thread;
	pthread_create(&thread, 0, c_worker, 0);
	pthread_setname_np(thread, "worker");
	pthread_join(thread, 0);
	return 0;
}
