// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

// Programs that try to make a profiler of the whole host remember or read too much.
// They end by themselves.
//
//   strangers names    SECONDS PROCESSES LINES    stacks of forged addresses, and a perf
//                                                 map of so many lines of 1 KB for them
//   strangers mappings SECONDS PROCESSES COUNT    idle, each with so many mappings
//   strangers files    SECONDS PROCESSES COUNT DIRECTORY
//                                                 each runs code in so many sparse ELF files
//                                                 of 1 GiB in DIRECTORY, by turns
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

struct frame {
	struct frame *next;
	uintptr_t address;
};

static struct frame chain[126];
static const uintptr_t code = 0x10000000, size = 0x3fffffff;

static uint64_t random_number(void)
{
	static uint64_t x;
	if (x == 0)
		x = 88172645463325252u + getpid();
	x ^= x << 13;
	x ^= x >> 7;
	return x ^= x << 17;
}

// spins with a chain of frames that the kernel follows in place of the real one.
__attribute__((noinline)) static void spin(double seconds)
{
	struct frame *volatile *own = __builtin_frame_address(0);
	struct frame *before = *own;
	*own = chain;
	for (double until = now() + seconds; now() < until;)
		for (volatile int i = 0; i < 20000; i++)
			;
	*own = before;
}

static void names(double seconds, int lines)
{
	char path[64];
	snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
	FILE *f = fopen(path, "w");
	if (f == NULL)
		fail(path);
	uintptr_t each = size / lines;
	for (int i = 0; i < lines; i++) {
		fprintf(f, "%lx %lx n%d_%d_", (unsigned long)(code + i * each), (unsigned long)each, getpid(), i);
		for (int j = 0; j < 1000; j++)
			fputc('a' + (i + j) % 26, f);
		fputc('\n', f);
	}
	fclose(f);
	for (double until = now() + seconds; now() < until;) {
		for (int i = 0; i < 126; i++) {
			chain[i].next = i < 125 ? &chain[i + 1] : NULL;
			chain[i].address = code + random_number() % size;
		}
		spin(0.002);
	}
	unlink(path);
}

static void mappings(int count)
{
	int fd = open("/proc/self/exe", O_RDONLY);
	if (fd < 0)
		fail("open");
	for (int i = 0; i < count; i++)
		if (mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED)
			fail("mmap");
}

typedef void (*function)(uint64_t);

// maps an ELF file whose symbol table is a hole, and returns code in it.
static function map_sparse(const char *path)
{
	const uint64_t bytes = 1u << 30, code_bytes = 1 << 20, entry = 12288;
	Elf64_Ehdr h = {
		.e_type = ET_DYN, .e_machine = EM_X86_64, .e_version = 1, .e_phoff = 64, .e_shoff = 4096,
		.e_ehsize = 64, .e_phentsize = 56, .e_phnum = 1, .e_shentsize = 64, .e_shnum = 3, .e_shstrndx = 2,
	};
	memcpy(h.e_ident, ELFMAG "\2\1\1", 7);
	// It counts its argument down to 0.
#ifdef __aarch64__
	h.e_machine = EM_AARCH64;
	const uint32_t loop[] = {0xf1000400, 0x54ffffe1, 0xd65f03c0}; // subs x0, x0, #1; b.ne .-4; ret
#else
	const uint8_t loop[] = {0x48, 0xff, 0xcf, 0x75, 0xfb, 0xc3}; // dec %rdi; jne .-3; ret
#endif
	Elf64_Phdr p = {.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_filesz = code_bytes, .p_memsz = code_bytes, .p_align = 4096};
	Elf64_Shdr s[3] = {
		{0},
		{.sh_name = 1, .sh_type = SHT_SYMTAB, .sh_offset = code_bytes, .sh_size = bytes - code_bytes, .sh_link = 2, .sh_entsize = 24},
		{.sh_name = 9, .sh_type = SHT_STRTAB, .sh_offset = 8192, .sh_size = 32},
	};
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0700);
	if (fd < 0 || pwrite(fd, &h, sizeof h, 0) < 0 || pwrite(fd, &p, sizeof p, 64) < 0 || pwrite(fd, s, sizeof s, 4096) < 0 ||
	    pwrite(fd, "\0.symtab\0.strtab", 17, 8192) < 0 || pwrite(fd, loop, sizeof loop, entry) < 0 || ftruncate(fd, bytes) < 0)
		fail(path);
	char *at = mmap(NULL, 2 * entry, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
	if (at == MAP_FAILED)
		fail(path);
	close(fd);
	return (function)(at + entry);
}

static void files(double until, int count, const char *directory)
{
	char path[512];
	function in[count];
	for (int i = 0; i < count; i++) {
		snprintf(path, sizeof path, "%s/sparse-%d-%d", directory, getpid(), i);
		in[i] = map_sparse(path);
	}
	for (int i = 0; now() < until; i++) {
		in[i % count](300000);
		usleep(100000);
	}
}

int main(int argc, char **argv)
{
	if (argc < 5)
		return 2;
	double seconds = atof(argv[2]), until = now() + seconds;
	int processes = atoi(argv[3]), count = atoi(argv[4]);
	const char *directory = argc > 5 ? argv[5] : ".";
	if (processes > 0) {
		for (int i = 0; i < processes; i++) {
			pid_t pid = fork();
			if (pid < 0)
				fail("fork");
			if (pid == 0) {
				char left[32]; // all end at one time, however late they begin
				snprintf(left, sizeof left, "%f", until - now());
				execl("/proc/self/exe", argv[0], argv[1], left, "0", argv[4], directory, (char *)NULL);
				fail("exec");
			}
		}
		while (wait(NULL) > 0 || errno == EINTR)
			;
		return 0;
	}
	if (strcmp(argv[1], "names") == 0)
		names(seconds, count);
	else if (strcmp(argv[1], "mappings") == 0)
		mappings(count);
	else
		files(until, count, directory);
	while (now() < until)
		usleep(100000);
	return 0;
}
