// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// A program that starts many processes. Linked statically, so that one costs
// little more than what the kernel takes for it.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

__attribute__((noinline)) void spin_child(double seconds)
{
	while (now(CLOCK_PROCESS_CPUTIME_ID) < seconds)
		;
}

__attribute__((noinline)) void spin_hot(void)
{
	for (volatile unsigned long n = 0;; n++)
		;
}

// churn CHILD RATE COUNT BURN: start COUNT processes of the program CHILD, RATE a
// second as far as that is possible, which burn BURN seconds each. Says how long
// it took.
static int churn(char **arg)
{
	char *child = arg[0], *argv[] = {arg[0], "burn", arg[3], NULL};
	double rate = atof(arg[1]);
	long count = atol(arg[2]), started = 0, ended = 0;
	double begin = now(CLOCK_MONOTONIC);
	while (ended < count) {
		long due = (now(CLOCK_MONOTONIC) - begin) * rate;
		// No more than 64 at once, so that a machine that is too slow is not buried.
		while (started < count && started < due && started - ended < 64) {
			pid_t pid = vfork();
			if (pid == 0) {
				execv(child, argv);
				_exit(127);
			}
			if (pid < 0)
				break;
			started++;
		}
		while (waitpid(-1, NULL, WNOHANG) > 0)
			ended++;
		usleep(500);
	}
	printf("%ld %.3f\n", ended, now(CLOCK_MONOTONIC) - begin);
	fflush(stdout);
	pause();
	return 0;
}

// bomb: every process starts others until it may not, and waits for its end, which
// is that of its parent at the latest.
static void bomb(void)
{
	for (pid_t pid; (pid = fork()) >= 0;)
		if (pid == 0)
			prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;)
		pause();
}

static void *thread(void *unused)
{
	struct timespec pause = {2, 0};
	for (;;) {
		double end = now(CLOCK_THREAD_CPUTIME_ID) + 0.001;
		while (now(CLOCK_THREAD_CPUTIME_ID) < end)
			;
		nanosleep(&pause, NULL);
	}
	return NULL;
}

// threads COUNT: start so many threads, which use a two-thousandth of a CPU each.
static int threads(char **arg)
{
	pthread_attr_t small;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	for (long n = atol(arg[0]); n > 0; n--) {
		pthread_t t;
		if (pthread_create(&t, &small, thread, NULL) != 0)
			return 1;
		usleep(500);
	}
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}

// into COMMAND...: become another program in another mount, network and cgroup
// namespace on a line of input.
static int into(char **arg)
{
	getchar();
	if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWCGROUP) != 0)
		return 1;
	execv(arg[0], arg);
	return 127;
}

// again OTHER COUNT: live for a second, then become OTHER, which becomes this program
// again, and so on, COUNT times in all. The environment of each names it. It has so many
// arguments that the kernel takes milliseconds before it has copied the environment.
static int again(char **argv)
{
	enum { many = 200000 };
	static char *next[many + 1];
	char left[24], service[4200], *environ[] = {service, NULL};
	long count = atol(argv[3]);
	double end = now(CLOCK_PROCESS_CPUTIME_ID) + 0.02;
	while (now(CLOCK_PROCESS_CPUTIME_ID) < end)
		;
	sleep(1);
	if (count <= 1)
		return 0;
	snprintf(left, sizeof left, "%ld", count - 1);
	snprintf(service, sizeof service, "OTEL_SERVICE_NAME=%s", argv[2]);
	next[0] = argv[2], next[1] = "again", next[2] = argv[0], next[3] = left;
	for (int i = 4; i < many; i++)
		next[i] = "";
	execve(argv[2], next, environ);
	return 127;
}

int main(int argc, char **argv)
{
	if (argc >= 4 && strcmp(argv[1], "again") == 0)
		return again(argv);
	if (argc == 6 && strcmp(argv[1], "churn") == 0)
		return churn(argv + 2);
	if (argc == 3 && strcmp(argv[1], "burn") == 0)
		return spin_child(atof(argv[2])), 0;
	if (argc == 3 && strcmp(argv[1], "threads") == 0)
		return threads(argv + 2);
	if (argc >= 3 && strcmp(argv[1], "into") == 0)
		return into(argv + 2);
	if (argc == 2 && strcmp(argv[1], "hot") == 0)
		spin_hot();
	if (argc == 2 && strcmp(argv[1], "bomb") == 0)
		bomb();
	return 2;
}
