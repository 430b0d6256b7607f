// One thread for each way to wait (or not to); prints "NAME TID" for each, then waits for a line.
#define _GNU_SOURCE
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int word;
static int idle_pipe[2];

static void wait_futex(void)
{
	syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

static void wait_poll(void)
{
	struct pollfd poll_fd = { .fd = idle_pipe[0], .events = POLLIN };

	poll(&poll_fd, 1, 600000);
}

static void wait_read(void)
{
	char byte;

	if (read(idle_pipe[0], &byte, 1) < 0)
		abort();
}

static void wait_sleep(void)
{
	struct timespec duration = { .tv_sec = 600 };

	nanosleep(&duration, NULL);
}

/* The parent of a vfork cannot be interrupted until its child is gone. */
static void wait_vfork(void)
{
	if (vfork() == 0) {
		pause();
		_exit(0);
	}
}

/* As glibc's posix_spawn, whose child may hang in its exec. */
static void wait_clone3(void)
{
	struct clone_args args = { .flags = CLONE_VFORK, .exit_signal = SIGCHLD };

	if (syscall(SYS_clone3, &args, sizeof(args)) == 0) {
		pause();
		_exit(0);
	}
}

/* Waits for a completion of a ring into which nothing was put. */
static void wait_uring(void)
{
	struct io_uring_params params = { 0 };
	int ring = syscall(SYS_io_uring_setup, 4, &params);

	syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
}

/* A call of the 32-bit interface: 29 is pause(2) there, and shmget(2) in the 64-bit one. */
static void wait_compat(void)
{
#if defined(__x86_64__)
	long result;

	__asm__ volatile("int $0x80" : "=a"(result) : "a"(29) : "memory");
#endif
}

static void spin(void)
{
	for (volatile int on = 1; on;)
		;
}

static void yield(void)
{
	for (;;)
		sched_yield();
}

static const struct {
	const char *name;
	void (*run)(void);
} kinds[] = {
	{ "futex", wait_futex }, { "poll", wait_poll },     { "read", wait_read },
	{ "sleep", wait_sleep }, { "vfork", wait_vfork },   { "spin", spin },
	{ "yield", yield },      { "compat", wait_compat }, { "clone3", wait_clone3 },
	{ "uring", wait_uring },
};

static void *begin(void *kind)
{
	int index = *(int *)kind;

	printf("%s %ld\n", kinds[index].name, syscall(SYS_gettid));
	fflush(stdout);
	kinds[index].run();
	return NULL;
}

int main(int argc, char **argv)
{
	static int indexes[sizeof(kinds) / sizeof(*kinds)];
	pthread_t thread;

	if (pipe(idle_pipe))
		return 1;
	for (int asked = 1; asked < argc; asked++)
		for (unsigned int i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
			if (!strcmp(argv[asked], kinds[i].name)) {
				indexes[i] = i;
				pthread_create(&thread, NULL, begin, &indexes[i]);
			}
	getchar();
	/* Not a return from main: the vfork child would outlive us. */
	kill(0, 9);
}
