// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// sender reads a line with a number of rounds, sends four datagrams in each, three in one
// function and one in another, and prints how many bytes it has sent; until its input ends.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>

static long sent;

static void __attribute__((noinline)) send_once(int to, int size) {
	static char b[1000];
	ssize_t n = send(to, b, size, 0);
	if (n > 0)
		sent += n;
}

static void __attribute__((noinline)) send_three_parts(int to) {
	for (int i = 0; i < 3; i++)
		send_once(to, 100);
	__asm__ volatile("");
}

static void __attribute__((noinline)) send_one_part(int to) {
	send_once(to, 100);
	__asm__ volatile("");
}

int main(void) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof a;
	int in = socket(AF_INET, SOCK_DGRAM, 0), out = socket(AF_INET, SOCK_DGRAM, 0), rounds;
	if (bind(in, (void *)&a, sizeof a) || getsockname(in, (void *)&a, &length) || connect(out, (void *)&a, length))
		return 1;
	while (scanf("%d", &rounds) == 1) {
		sent = 0;
		for (int i = 0; i < rounds; i++) {
			send_three_parts(out);
			send_one_part(out);
		}
		printf("%ld\n", sent);
		fflush(stdout);
	}
	return 0;
}
