// SPDX-License-Identifier: Apache-2.0
/*
 * Calls NCCL's functions (testbed/faults/nccl.c) some times for each line that it reads, and
 * prints the nanoseconds of CPU of one call: of an AllReduce, of a Send.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CALLS 100000

typedef struct {
	char internal[128];
} ncclUniqueId;

int ncclCommInitRank(void **comm, int ranks, ncclUniqueId id, int rank);
int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, void *comm,
		  void *stream);
int ncclSend(const void *from, size_t count, int type, int peer, void *comm, void *stream);

static double cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

int main(void)
{
	ncclUniqueId id = { "timed" };
	void *comm = NULL;
	char line[16];

	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		double began_ns = cpu_ns(), between_ns;

		if (!comm)
			ncclCommInitRank(&comm, 2, id, 0);
		for (int i = 0; i < CALLS; i++)
			ncclAllReduce(NULL, NULL, 1, 7, 0, comm, NULL);
		between_ns = cpu_ns();
		for (int i = 0; i < CALLS; i++)
			ncclSend(NULL, 1, 7, 1, comm, NULL);
		printf("%.2f %.2f\n", (between_ns - began_ns) / CALLS,
		       (cpu_ns() - between_ns) / CALLS);
		fflush(stdout);
	}
	return 0;
}
