// SPDX-License-Identifier: Apache-2.0
/*
 * Stub of libnccl.so.2: a communicator of one rank that counts its operations, and a RAS
 * server on the port of NCCL_RAS_ADDR that reports them. Signatures: nccl.h.
 */
#define _GNU_SOURCE
#include "../../../testbed/workloads/stubs/ras_server.h"

static int operations;

static void ras_report(FILE *out)
{
	fprintf(out,
		"{\"nccl_version\": \"2.28.0\", \"communicators_count\": 1, \"communicators\": "
		"[{\"hash\": \"1\", \"size\": 1, \"ranks_count\": 1, \"missing_ranks_count\": 0, "
		"\"ranks\": [{\"rank\": 0, \"host\": \"127.0.0.1\", \"pid\": %d, \"cuda_dev\": 0, "
		"\"nvml_dev\": 0, \"status\": {\"init_state\": \"SUCCESS\", \"async_error\": "
		"\"SUCCESS\"}, \"collective_counts\": {\"AllReduce\": %d}}], \"missing_ranks\": "
		"[]}]}\n",
		getpid(), operations);
}

int ncclCommInitAll(void **communicators, int count, const int *devices)
{
	(void)count, (void)devices;
	communicators[0] = &operations;
	return ras_begin();
}

typedef struct {
	char internal[128];
} ncclUniqueId;

int ncclGetUniqueId(ncclUniqueId *id)
{
	snprintf(id->internal, sizeof(id->internal), "stub %d", getpid());
	return 0;
}

int ncclCommInitRank(void **communicator, int ranks, ncclUniqueId id, int rank)
{
	(void)ranks, (void)id, (void)rank;
	*communicator = &operations;
	return 0;
}

int ncclGroupStart(void)
{
	return 0;
}

int ncclGroupEnd(void)
{
	return 0;
}

int ncclSend(const void *from, size_t count, int type, int peer, void *communicator, void *stream)
{
	(void)from, (void)count, (void)type, (void)peer, (void)communicator, (void)stream;
	return 0;
}

int ncclRecv(void *to, size_t count, int type, int peer, void *communicator, void *stream)
{
	(void)to, (void)count, (void)type, (void)peer, (void)communicator, (void)stream;
	return 0;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation,
		  void *communicator, void *stream)
{
	(void)from, (void)to, (void)count, (void)type, (void)operation, (void)communicator;
	(void)stream;
	operations++;
	return 0;
}
