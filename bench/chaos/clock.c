// SPDX-License-Identifier: Apache-2.0
// Preloaded into our own programs in a run of chaos: the date is off by the seconds in the file
// KCOVER_CHAOS_CLOCK. Date alone: clocks that count from the start, and every wait, stay true.
// libfaketime makes Python's sleep fail.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile signed char *offset;

__attribute__((constructor)) static void find_offset(void)
{
	const char *path = getenv("KCOVER_CHAOS_CLOCK");
	int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;

	if (file < 0)
		return;
	void *page = mmap(NULL, 1, PROT_READ, MAP_SHARED, file, 0);
	close(file);
	if (page != MAP_FAILED)
		offset = page;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int done = (int)syscall(SYS_clock_gettime, clock, now);

	if (done == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		now->tv_sec += *offset;
	return done;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
	struct timespec date;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &date);
	now->tv_sec = date.tv_sec;
	now->tv_usec = date.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *where)
{
	struct timespec date;

	clock_gettime(CLOCK_REALTIME, &date);
	if (where)
		*where = date.tv_sec;
	return date.tv_sec;
}
