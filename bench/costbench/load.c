// Two loads of the cost bench:
//   load threads COUNT   COUNT threads, all but the first parked; says "ready" when there
//   load syscalls        for each line read: CPU nanoseconds of one getppid(2)
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CALLS   1000000
#define WAKE_US 250000

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void *park(void *unused)
{
	pthread_mutex_lock(&gate);
	return unused;
}

// The first thread of the process is one of the `count`.
static int park_threads(int count)
{
	pthread_attr_t small;
	pthread_t thread;

	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	pthread_mutex_lock(&gate);
	for (int i = 1; i < count; i++)
		if (pthread_create(&thread, &small, park, NULL))
			return 1;
	return 0;
}

// The first thread of a process continues, as a healthy rank does.
static void live(void)
{
	for (;;)
		usleep(WAKE_US);
}

static int live_with(int count)
{
	if (park_threads(count))
		return 1;
	puts("ready");
	fflush(stdout);
	live();
	return 0;
}

static double cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

static int time_calls(void)
{
	char line[16];

	while (fgets(line, sizeof(line), stdin)) {
		double begin = cpu_ns();

		for (int i = 0; i < CALLS; i++)
			syscall(SYS_getppid);
		printf("%.3f\n", (cpu_ns() - begin) / CALLS);
		fflush(stdout);
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "threads"))
		return live_with(atoi(argv[2]));
	if (argc == 2 && !strcmp(argv[1], "syscalls"))
		return time_calls();
	return 2;
}
