// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// waits has its first thread wait in one way, again and again, until its standard input
// ends: waits WAY FILE. A second thread ends each wait after some milliseconds; waits for
// the disk end by themselves, and use FILE.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const struct timespec each = {.tv_nsec = 5000000}, brief = {.tv_nsec = 500000};
static int waits_on = -1, wakes = -1; // descriptors of the first and the second thread
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static sem_t sem;
static const char *path;
static int disk = -1;
static char *aligned;
static const size_t size = 64 << 10; // the file has 16 times as much

static void fail(const char *what) {
	perror(what);
	exit(1);
}

static int ok(int result, const char *what) {
	if (result < 0) fail(what);
	return result;
}

static void pause_each(void) { nanosleep(&each, NULL); }

// A way is what the first thread does, and the second one. set is called before.
struct way {
	const char *name;
	void (*set)(void);
	void (*wait)(int);
	void (*wake)(int);
};

static struct sockaddr_in loopback(void) {
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static struct sockaddr_in address;

static int listener(int backlog) {
	int s = ok(socket(AF_INET, SOCK_STREAM, 0), "socket");
	address = loopback();
	ok(bind(s, (struct sockaddr *)&address, sizeof address), "bind");
	ok(listen(s, backlog), "listen");
	socklen_t n = sizeof address;
	ok(getsockname(s, (struct sockaddr *)&address, &n), "getsockname");
	return s;
}

static int connected(void) {
	int s = ok(socket(AF_INET, SOCK_STREAM, 0), "socket");
	ok(connect(s, (struct sockaddr *)&address, sizeof address), "connect");
	return s;
}

static void set_tcp(void) {
	int l = listener(1);
	wakes = connected();
	waits_on = ok(accept(l, NULL, NULL), "accept");
}

static void set_udp(void) {
	waits_on = ok(socket(AF_INET, SOCK_DGRAM, 0), "socket");
	address = loopback();
	ok(bind(waits_on, (struct sockaddr *)&address, sizeof address), "bind");
	socklen_t n = sizeof address;
	ok(getsockname(waits_on, (struct sockaddr *)&address, &n), "getsockname");
	wakes = ok(socket(AF_INET, SOCK_DGRAM, 0), "socket");
	ok(connect(wakes, (struct sockaddr *)&address, sizeof address), "connect");
}

static void pair(int type) {
	int s[2];
	ok(socketpair(AF_UNIX, type, 0, s), "socketpair");
	waits_on = s[0], wakes = s[1];
}

static void set_unix(void) { pair(SOCK_STREAM); }
static void set_unix_datagram(void) { pair(SOCK_DGRAM); }
static void set_accept(void) { waits_on = listener(1); }
static void set_connect(void) { wakes = listener(0); }

static void set_pipe(void) {
	int p[2];
	ok(pipe(p), "pipe");
	waits_on = p[0], wakes = p[1];
}

static void set_eventfd(void) { waits_on = wakes = ok(eventfd(0, 0), "eventfd"); }

static void read_one(int i) {
	char b[8];
	ok(read(waits_on, b, sizeof b), "read");
}

static void receive(int i) {
	char b[8];
	ok(recv(waits_on, b, sizeof b, 0), "recv");
}

static void write_one(int i) {
	pause_each();
	ok(write(wakes, "12345678", 8), "write");
}

static char block[1 << 20];

// write_all fills the socket's buffers, which drain reads.
static void write_all(int i) {
	for (size_t n = 0; n < sizeof block;) n += ok(write(waits_on, block + n, sizeof block - n), "write");
}

static void drain(int i) {
	static char to[1 << 20];
	pause_each();
	for (size_t n = 0; n < sizeof to;) n += ok(read(wakes, to, sizeof to - n), "read");
}

static void accept_one(int i) { close(ok(accept(waits_on, NULL, NULL), "accept")); }

static void connect_one(int i) {
	pause_each();
	close(connected());
}

// connect_full connects to a listener that has no room, until accept_late makes some.
static void connect_full(int i) { close(connected()); }

static void accept_late(int i) {
	pause_each();
	close(ok(accept(wakes, NULL, NULL), "accept"));
}

static struct sockaddr_un unix_address = {.sun_family = AF_UNIX};

static void set_connect_unix(void) {
	snprintf(unix_address.sun_path + 1, sizeof unix_address.sun_path - 1, "waits-%d", getpid());
	wakes = ok(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
	ok(bind(wakes, (struct sockaddr *)&unix_address, sizeof unix_address), "bind");
	ok(listen(wakes, 0), "listen");
}

static void connect_unix(int i) {
	int s = ok(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
	ok(connect(s, (struct sockaddr *)&unix_address, sizeof unix_address), "connect");
	close(s);
}

static void poll_one(int i) {
	struct pollfd p = {.fd = waits_on, .events = POLLIN};
	ok(poll(&p, 1, -1), "poll");
	read_one(i);
}

static void select_one(int i) {
	fd_set set;
	FD_ZERO(&set);
	FD_SET(waits_on, &set);
	struct timeval t = {.tv_sec = 60};
	ok(select(waits_on + 1, &set, NULL, NULL, &t), "select");
	read_one(i);
}

static void epoll_one(int i) {
	static int e = -1;
	struct epoll_event event = {.events = EPOLLIN};
	if (e < 0) {
		e = ok(epoll_create1(0), "epoll_create1");
		ok(epoll_ctl(e, EPOLL_CTL_ADD, waits_on, &event), "epoll_ctl");
	}
	ok(epoll_wait(e, &event, 1, 60000), "epoll_wait");
	read_one(i);
}

static void lock(int i) {
	nanosleep(&brief, NULL); // the second thread gets it
	pthread_mutex_lock(&mutex);
	pthread_mutex_unlock(&mutex);
}

static void hold(int i) {
	pthread_mutex_lock(&mutex);
	pause_each();
	pthread_mutex_unlock(&mutex);
	nanosleep(&brief, NULL);
}

static void wait_condition(int i) {
	pthread_mutex_lock(&mutex);
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_sec += 60;
	pthread_cond_timedwait(&changed, &mutex, &t);
	pthread_mutex_unlock(&mutex);
}

static void signal_condition(int i) {
	pause_each();
	pthread_cond_signal(&changed);
}

static void set_semaphore(void) { sem_init(&sem, 0, 0); }
static void down(int i) { sem_wait(&sem); }

static void up(int i) {
	pause_each();
	sem_post(&sem);
}

static int sysv = -1;

static void set_sysv(void) { sysv = ok(semget(IPC_PRIVATE, 1, 0600), "semget"); }

static void sysv_op(struct sembuf *op) {
	if (semop(sysv, op, 1) < 0 && errno != EIDRM && errno != EINVAL) fail("semop"); // these if it is removed
}

static void sysv_down(int i) {
	struct sembuf op = {.sem_op = -1};
	sysv_op(&op);
}

static void sysv_up(int i) {
	struct sembuf op = {.sem_op = 1};
	pause_each();
	sysv_op(&op);
}

static void set_file_lock(void) {
	waits_on = ok(open(path, O_RDWR), "open");
	wakes = ok(open(path, O_RDWR), "open");
}

static void flock_one(int i) {
	nanosleep(&brief, NULL);
	ok(flock(waits_on, LOCK_EX), "flock");
	flock(waits_on, LOCK_UN);
}

static void flock_hold(int i) {
	ok(flock(wakes, LOCK_EX), "flock");
	pause_each();
	flock(wakes, LOCK_UN);
	nanosleep(&brief, NULL);
}

static void sleep_one(int i) { pause_each(); }

static void sleep_until(int i) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_nsec += each.tv_nsec;
	if (t.tv_nsec >= 1000000000) t.tv_nsec -= 1000000000, t.tv_sec++;
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static void wait_child(int i) {
	pid_t child = ok(fork(), "fork");
	if (child == 0) {
		pause_each();
		_exit(0);
	}
	ok(waitpid(child, NULL, 0), "waitpid");
}

static sigset_t usr1;
static pthread_t first;

static void set_signal(void) {
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &usr1, NULL);
	first = pthread_self();
}

static void wait_signal(int i) { sigwaitinfo(&usr1, NULL); }

static void send_signal(int i) {
	pause_each();
	pthread_kill(first, SIGUSR1);
}

static void set_file(void) {
	disk = ok(open(path, O_RDWR), "open");
	if (posix_memalign((void **)&aligned, 4096, size)) fail("posix_memalign");
}

static void set_direct(void) {
	set_file();
	ok(fcntl(disk, F_SETFL, O_DIRECT), "O_DIRECT");
}

static off_t at(int i) { return (off_t)(i % 16) * size; }
static void read_disk(int i) { ok(pread(disk, aligned, size, at(i)), "pread"); }
static void write_disk(int i) { ok(pwrite(disk, aligned, size, at(i)), "pwrite"); }

static void forget(int i) { ok(posix_fadvise(disk, 0, 0, POSIX_FADV_DONTNEED) ? -1 : 0, "posix_fadvise"); }

static void read_cached(int i) {
	forget(i);
	read_disk(i);
}

static void sync_file(int i) {
	aligned[0] = i;
	write_disk(i);
	ok(fsync(disk), "fsync");
}

static void fault(int i) {
	static volatile char sum;
	forget(i);
	char *m = mmap(NULL, size, PROT_READ, MAP_SHARED, disk, at(i));
	if (m == MAP_FAILED) fail("mmap");
	madvise(m, size, MADV_RANDOM);
	for (size_t n = 0; n < size; n += 4096) sum += m[n];
	munmap(m, size);
}

static void set_receive_into_file(void) {
	set_tcp();
	set_file();
}

// receive_into_file receives into memory that the kernel has to read from the file.
static void receive_into_file(int i) {
	forget(i);
	char *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, disk, at(i));
	if (m == MAP_FAILED) fail("mmap");
	madvise(m, size, MADV_RANDOM);
	for (size_t n = 0; n < size; n += 4096) {
		ok(write(wakes, "12345678", 8), "write");
		ok(recv(waits_on, m + n + 100, 8, 0), "recv");
	}
	munmap(m, size);
}

static const struct way ways[] = {
	{"tcp_read", set_tcp, read_one, write_one},
	{"tcp_recv", set_tcp, receive, write_one},
	{"tcp_write", set_tcp, write_all, drain},
	{"tcp_connect", set_connect, connect_full, accept_late},
	{"tcp_accept", set_accept, accept_one, connect_one},
	{"udp_recv", set_udp, receive, write_one},
	{"unix_read", set_unix, read_one, write_one},
	{"unix_write", set_unix, write_all, drain},
	{"unix_datagram", set_unix_datagram, receive, write_one},
	{"unix_connect", set_connect_unix, connect_unix, accept_late},
	{"direct_read", set_direct, read_disk, NULL},
	{"direct_write", set_direct, write_disk, NULL},
	{"cached_read", set_file, read_cached, NULL},
	{"fsync", set_file, sync_file, NULL},
	{"page_fault", set_file, fault, NULL},
	{"tcp_recv_page_fault", set_receive_into_file, receive_into_file, NULL},
	{"mutex", NULL, lock, hold},
	{"condition", NULL, wait_condition, signal_condition},
	{"semaphore", set_semaphore, down, up},
	{"sysv_semaphore", set_sysv, sysv_down, sysv_up},
	{"flock", set_file_lock, flock_one, flock_hold},
	{"nanosleep", NULL, sleep_one, NULL},
	{"clock_nanosleep", NULL, sleep_until, NULL},
	{"pipe", set_pipe, read_one, write_one},
	{"eventfd", set_eventfd, read_one, write_one},
	{"poll", set_tcp, poll_one, write_one},
	{"select", set_tcp, select_one, write_one},
	{"epoll", set_tcp, epoll_one, write_one},
	{"child", NULL, wait_child, NULL},
	{"signal", set_signal, wait_signal, send_signal},
};

static const struct way *way;

static void *second(void *unused) {
	for (int i = 0;; i++) way->wake(i);
	return NULL;
}

static void *end(void *unused) {
	char c;
	while (read(STDIN_FILENO, &c, 1) > 0) {
	}
	if (sysv >= 0) semctl(sysv, 0, IPC_RMID);
	exit(0);
}

int main(int argc, char **argv) {
	if (argc != 3) return 2;
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
		if (!strcmp(ways[i].name, argv[1])) way = &ways[i];
	if (!way) return 2;
	path = argv[2];
	if (way->set) way->set();
	pthread_t ends, wakes;
	pthread_create(&ends, NULL, end, NULL);
	if (way->wake) pthread_create(&wakes, NULL, second, NULL);
	for (int i = 0;; i++) way->wait(i);
}
