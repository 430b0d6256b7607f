// SPDX-License-Identifier: Apache-2.0
/*
 * A stub of libnccl.so.2 for ranks of one host: an operation is a word in
 * memory that they share, for which the stub of the device waits. Two things
 * it has as the real one: a thread that turns while an operation is open, as
 * for a network does (NCCL_STUB_PROXY=1), and one that answers for all ranks
 * at the port of RAS (NCCL_RAS_ADDR, unless NCCL_RAS_ENABLE=0). Signatures:
 * nccl.h; the answer: src/ras/client_support.cc.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/mman.h>

#include "ras_server.h"

enum channel {
	ALL_REDUCE,
	ALL_GATHER,
	OTHER_SIZE,
	MESSAGES,
	CHANNELS
};
enum {
	RANKS = 16
};

/* as in testbed/workloads/gpu_training.py */
struct shared {
	volatile uint32_t launched[CHANNELS][RANKS];
	volatile uint32_t counted[CHANNELS][RANKS];
	volatile int32_t pids[RANKS];
	volatile uint32_t link_is_dead;
};

struct comm {
	struct shared *shared;
	uint32_t ranks, rank;
	int has_proxy;
	sem_t opened;
	enum channel channel;
	uint32_t step;
};

typedef struct {
	char internal[128];
} ncclUniqueId;

static int is_done(const struct comm *comm)
{
	if (comm->shared->link_is_dead || comm->channel == MESSAGES)
		return 0;
	for (uint32_t rank = 0; rank < comm->ranks; rank++)
		if (comm->shared->launched[comm->channel][rank] < comm->step)
			return 0;
	return 1;
}

static void *progress(void *argument)
{
	struct comm *comm = argument;

	for (;;) {
		while (sem_wait(&comm->opened))
			;
		while (!is_done(comm))
			sched_yield();
	}
	return NULL;
}

static const struct comm *reported;

static void ras_report(FILE *to)
{
	const struct comm *comm = reported;
	const struct shared *shared = comm->shared;

	fprintf(to,
		"{\"nccl_version\": \"2.28.9\", \"communicators_count\": 1, \"communicators\": [\n"
		"{\"hash\": \"5eed\", \"size\": %u, \"ranks_count\": %u, \"missing_ranks_count\": 0,\n"
		"\"ranks\": [\n",
		comm->ranks, comm->ranks);
	for (uint32_t rank = 0; rank < comm->ranks; rank++)
		fprintf(to,
			"{\"rank\": %u, \"host\": \"127.0.0.1\", \"pid\": %d, \"cuda_dev\": %u, "
			"\"nvml_dev\": %u,\n\"status\": {\"init_state\": \"SUCCESS\", "
			"\"async_error\": \"SUCCESS\"},\n"
			"\"collective_counts\": {\"AllReduce\": %u, \"AllGather\": %u}}%s\n",
			rank, shared->pids[rank], rank, rank,
			shared->counted[ALL_REDUCE][rank] + shared->counted[OTHER_SIZE][rank],
			shared->counted[ALL_GATHER][rank], rank + 1 < comm->ranks ? "," : "");
	fputs("],\n\"missing_ranks\": []}]}\n", to);
}

int ncclCommInitRank(struct comm **made, int ranks, ncclUniqueId id, int rank)
{
	const char *proxy = getenv("NCCL_STUB_PROXY"), *ras = getenv("NCCL_RAS_ENABLE");
	int file = open(getenv("NCCL_STUB_MEMORY"), O_RDWR | O_CLOEXEC);
	struct comm *comm = calloc(1, sizeof(*comm));
	pthread_t thread;

	(void)id;
	*made = comm;
	comm->shared =
		mmap(NULL, sizeof(*comm->shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (comm->shared == MAP_FAILED || ranks > RANKS)
		return 1;
	comm->ranks = ranks;
	comm->rank = rank;
	comm->shared->pids[rank] = getpid();
	sem_init(&comm->opened, 0, 0);
	comm->has_proxy = proxy && *proxy == '1';
	if (comm->has_proxy) {
		pthread_create(&thread, NULL, progress, comm);
		pthread_setname_np(thread, "NCCL Progress");
	}
	reported = comm;
	return ras && *ras == '0' ? 0 : ras_begin();
}

static int launch(struct comm *comm, enum channel channel, int is_collective)
{
	struct shared *shared = comm->shared;

	comm->channel = channel;
	comm->step = shared->launched[channel][comm->rank] + 1;
	shared->counted[channel][comm->rank] += is_collective;
	shared->launched[channel][comm->rank] = comm->step;
	if (comm->has_proxy)
		sem_post(&comm->opened);
	return 0;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation,
		  struct comm *comm, void *stream)
{
	(void)from, (void)to, (void)type, (void)operation, (void)stream;
	return launch(comm, count == 1 ? ALL_REDUCE : OTHER_SIZE, 1);
}

int ncclAllGather(const void *from, void *to, size_t count, int type, struct comm *comm,
		  void *stream)
{
	(void)from, (void)to, (void)count, (void)type, (void)stream;
	return launch(comm, ALL_GATHER, 1);
}

/* RAS does not count messages. Here they find no other end. */
int ncclSend(const void *from, size_t count, int type, int peer, struct comm *comm, void *stream)
{
	(void)from, (void)count, (void)type, (void)peer, (void)stream;
	return launch(comm, MESSAGES, 0);
}

int ncclRecv(void *to, size_t count, int type, int peer, struct comm *comm, void *stream)
{
	(void)to, (void)count, (void)type, (void)peer, (void)comm, (void)stream;
	return 0;
}
