// SPDX-License-Identifier: Apache-2.0
/*
 * Stub of libnccl.so.2, as a shared library: communicators that exist and operations that do
 * nothing. Signatures: nccl.h. It has no RAS.
 */
#include <stdlib.h>

typedef struct {
	char internal[128];
} ncclUniqueId;

static int make(void **comm)
{
	*comm = malloc(64);
	return 0;
}

int ncclCommInitRank(void **comm, int ranks, ncclUniqueId id, int rank)
{
	(void)ranks, (void)id, (void)rank;
	return make(comm);
}

int ncclCommInitRankConfig(void **comm, int ranks, ncclUniqueId id, int rank, void *config)
{
	(void)ranks, (void)id, (void)rank, (void)config;
	return make(comm);
}

int ncclCommInitRankScalable(void **comm, int ranks, int rank, int id_count, ncclUniqueId *ids,
			     void *config)
{
	(void)ranks, (void)rank, (void)id_count, (void)ids, (void)config;
	return make(comm);
}

int ncclCommSplit(void *comm, int colour, int key, void **made, void *config)
{
	(void)comm, (void)colour, (void)key, (void)config;
	return make(made);
}

int ncclCommDestroy(void *comm)
{
	free(comm);
	return 0;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, void *comm,
		  void *stream)
{
	(void)from, (void)to, (void)count, (void)type, (void)operation, (void)comm, (void)stream;
	return 0;
}

int ncclReduceScatter(const void *from, void *to, size_t count, int type, int operation, void *comm,
		      void *stream)
{
	(void)from, (void)to, (void)count, (void)type, (void)operation, (void)comm, (void)stream;
	return 0;
}

int ncclAllGather(const void *from, void *to, size_t count, int type, void *comm, void *stream)
{
	(void)from, (void)to, (void)count, (void)type, (void)comm, (void)stream;
	return 0;
}

int ncclReduce(const void *from, void *to, size_t count, int type, int operation, int root,
	       void *comm, void *stream)
{
	(void)from, (void)to, (void)count, (void)type, (void)operation, (void)root, (void)comm;
	(void)stream;
	return 0;
}

int ncclSend(const void *from, size_t count, int type, int peer, void *comm, void *stream)
{
	(void)from, (void)count, (void)type, (void)peer, (void)comm, (void)stream;
	return 0;
}

int ncclRecv(void *to, size_t count, int type, int peer, void *comm, void *stream)
{
	(void)to, (void)count, (void)type, (void)peer, (void)comm, (void)stream;
	return 0;
}
