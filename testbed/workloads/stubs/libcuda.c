// SPDX-License-Identifier: Apache-2.0
/*
 * A stub for the GPU driver's library: its host threads wait as those of the
 * real one do: in a loop that reads a word of memory and asks the clock, that
 * yields the CPU as well, or asleep at a semaphore of their own frame that
 * another thread posts. The work of a device is a collective: it ends when
 * every rank has launched it, and takes a moment; of a world of 0 ranks it is
 * the device's own.
 */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdint.h>
#include <time.h>

#define CUDA_ERROR_NOT_READY 600

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_RAW, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static inline __attribute__((always_inline)) int wait_busily(volatile uint32_t *launched,
							     uint32_t world, uint32_t step,
							     int64_t takes_ns, int is_yielding)
{
	int64_t began_ns = now_ns();
	uint32_t rank = 0;

	while (rank < world || now_ns() - began_ns < takes_ns)
		if (rank < world && launched[rank] >= step)
			rank++;
		else if (is_yielding)
			sched_yield();
		else
			(void)now_ns();
	return 0;
}

int cuStreamSynchronize(volatile uint32_t *launched, uint32_t world, uint32_t step,
			int64_t takes_ns)
{
	return wait_busily(launched, world, step, takes_ns, 0);
}

int cuStreamSynchronizeYielding(volatile uint32_t *launched, uint32_t world, uint32_t step,
				int64_t takes_ns)
{
	return wait_busily(launched, world, step, takes_ns, 1);
}

int cuStreamQuery(volatile uint32_t *launched, uint32_t world, uint32_t step)
{
	for (uint32_t rank = 0; rank < world; rank++)
		if (launched[rank] < step)
			return CUDA_ERROR_NOT_READY;
	return 0;
}

struct work {
	volatile uint32_t *launched;
	uint32_t world, step;
	int64_t takes_ns;
	sem_t *done;
};

static void *await_interrupt(void *argument)
{
	struct work *work = argument;
	const struct timespec pause = { .tv_nsec = 20000000 };

	while (cuStreamQuery(work->launched, work->world, work->step))
		nanosleep(&pause, NULL);
	nanosleep(&(struct timespec){ .tv_sec = work->takes_ns / 1000000000,
				      .tv_nsec = work->takes_ns % 1000000000 },
		  NULL);
	sem_post(work->done);
	return NULL;
}

int cuStreamSynchronizeBlocking(volatile uint32_t *launched, uint32_t world, uint32_t step,
				int64_t takes_ns)
{
	sem_t done;
	struct work work = { launched, world, step, takes_ns, &done };
	pthread_t thread;

	sem_init(&done, 0, 0);
	pthread_create(&thread, NULL, await_interrupt, &work);
	while (sem_wait(&done))
		;
	pthread_join(thread, NULL);
	return 0;
}

/* A captured graph holds the collective: NCCL is not called, and counts nothing. */
int cuGraphLaunch(volatile uint32_t *launched, uint32_t rank)
{
	launched[rank]++;
	return 0;
}
