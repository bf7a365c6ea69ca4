// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// waiter blocks its first thread by known amounts: waiter sleep|migrate|mutex|
// pipe|socket TIMES MILLISECONDS; "both" blocks for MILLISECONDS in one function
// and three times as long in another; "ask" wakes another thread and waits for its
// answer. It begins when a line comes on its standard
// input, and says when, by the monotonic clock, when it was done, and how many
// nanoseconds that thread was off the CPU: what passed less what it ran. After the
// line "wait" it says 0 and waits for another line.

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static sem_t held, next;
static int times, fds[2];
static struct timespec each, thrice;

static long long now(clockid_t clock) {
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static long long off_cpu(void) { return now(CLOCK_MONOTONIC) - now(CLOCK_THREAD_CPUTIME_ID); }

static void *hold(void *unused) {
	for (int i = 0; i < times; i++) {
		pthread_mutex_lock(&mutex);
		sem_post(&held);
		nanosleep(&each, NULL);
		pthread_mutex_unlock(&mutex);
		sem_wait(&next);
	}
	return NULL;
}

static void *feed(void *unused) {
	for (int i = 0; i < times; i++) {
		sem_wait(&next); // who reads is about to, and waits however late it came
		nanosleep(&each, NULL);
		if (write(fds[1], "x", 1) != 1) exit(1);
	}
	return NULL;
}

static int there[2], back[2];

static void *answer(void *unused) {
	char c;
	while (read(there[0], &c, 1) == 1 && c != 'q')
		if (write(back[1], "x", 1) != 1) exit(1);
	return NULL;
}

// ask has the two threads wake each other: four switches or so each time.
static void ask(void) {
	char c;
	if (write(there[1], "x", 1) != 1 || read(back[0], &c, 1) != 1) exit(1);
}

static void migrate(int i) {
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(i % sysconf(_SC_NPROCESSORS_ONLN), &one);
	sched_setaffinity(0, sizeof one, &one);
}

__attribute__((noinline)) void block_briefly(void) { nanosleep(&each, NULL); __asm__ volatile(""); }
__attribute__((noinline)) void block_thrice(void) { nanosleep(&thrice, NULL); __asm__ volatile(""); }
__attribute__((noinline)) void block_in_mutex(void) {
	sem_wait(&held); // until it is, so that it blocks however late the other thread comes
	pthread_mutex_lock(&mutex);
	__asm__ volatile("");
}
__attribute__((noinline)) void block_in_read(void) {
	char c;
	if (read(fds[0], &c, 1) != 1) exit(1);
}

int main(int argc, char **argv) {
	if (argc != 4) return 2;
	char line[16];
	if (!fgets(line, sizeof line, stdin)) return 1;
	if (!strcmp(line, "wait\n")) {
		printf("0\n");
		fflush(stdout);
		if (!fgets(line, sizeof line, stdin)) return 1;
	}
	const char *how = argv[1];
	times = atoi(argv[2]);
	each.tv_nsec = atof(argv[3]) * 1e6;
	thrice.tv_nsec = 3 * each.tv_nsec;
	pthread_t other;
	sem_init(&held, 0, 0);
	sem_init(&next, 0, 0);
	if (!strcmp(how, "pipe") && pipe(fds)) return 1;
	if (!strcmp(how, "socket") && socketpair(AF_UNIX, SOCK_STREAM, 0, fds)) return 1;
	int threads = 0, asks = !strcmp(how, "ask");
	if (asks) {
		if (pipe(there) || pipe(back)) return 1;
		pthread_create(&other, NULL, answer, NULL);
		threads = 1;
	} else if (!strcmp(how, "mutex") || fds[1]) {
		pthread_create(&other, NULL, fds[1] ? feed : hold, NULL);
		threads = 1;
	}
	long long began = now(CLOCK_MONOTONIC), before = off_cpu();
	for (int i = 0; i < times; i++) {
		if (asks) {
			ask();
		} else if (!strcmp(how, "mutex")) {
			block_in_mutex();
			pthread_mutex_unlock(&mutex);
			sem_post(&next);
		} else if (fds[1]) {
			sem_post(&next);
			block_in_read();
		} else if (!strcmp(how, "both")) {
			block_briefly();
			block_thrice();
		} else {
			if (!strcmp(how, "migrate")) migrate(i);
			block_briefly();
		}
	}
	if (asks && write(there[1], "q", 1) != 1) return 1;
	if (threads) pthread_join(other, NULL);
	long long span = off_cpu() - before;
	printf("%lld\n%lld\n%lld\n", began, now(CLOCK_MONOTONIC), span);
	fflush(stdout);
	return 0;
}
