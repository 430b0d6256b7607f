// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Counts the operations that every process requests from its NCCL, by communicator, at the entry
 * of the library's functions (nccl.h; RCCL has the same ones). User space attaches each program
 * to the function in its section's name, in the files that ranks have mapped.
 *
 * Only entries are probed. A return probe would replace the return address of a job's own thread.
 * Since Linux 6.11 it returns by a system call, which a container's seccomp filter may refuse,
 * and that would kill the thread. So a new communicator is recognised when it is used for the
 * first time, from the variable that the program provided for it.
 */
#include "device_kernel.h"
#include <bpf/bpf_helpers.h>
#include "devices.h"
#include "kprobe.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * Each process that user space enters has its own share, and the tables hold all shares, so that
 * no process can take the room of another.
 */
#define PROCESSES     24
#define PROCESS_COMMS 64
#define PROCESS_PEERS 512

/* Preallocated, because kernels before 6.1 warn about other maps in a probe. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PROCESSES);
	__type(key, __u32); /* pid */
	__type(value, struct nccl_process_value);
} nccl_processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PROCESSES);
	__type(key, __u32); /* pid */
	__type(value, struct nccl_births_value);
} nccl_births SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PROCESSES *PROCESS_COMMS);
	__type(key, struct nccl_comm_key);
	__type(value, struct nccl_comm_value);
} nccl_comms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PROCESSES *PROCESS_PEERS);
	__type(key, struct nccl_peer_key);
	__type(value, struct nccl_peer_value);
} nccl_peers SEC(".maps");

static __always_inline __u32 current_pid(void)
{
	return bpf_get_current_pid_tgid() >> 32;
}

static __always_inline struct nccl_process_value *counted(__u32 pid)
{
	return bpf_map_lookup_elem(&nccl_processes, &pid);
}

/*
 * FNV-1a over words, folded: equal for equal ids on every host. Never 0, which means "unknown".
 */
static __always_inline __u64 mixed(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x100000001b3ULL;
	return (hash ^ (hash >> 32)) | 1;
}

#define HASH_START 0xcbf29ce484222325ULL
#define ID_WORDS   16 /* ncclUniqueId: 128 bytes */

static __always_inline __u64 identity_of(const void *id)
{
	__u64 words[ID_WORDS] = {};
	__u64 hash = HASH_START;

	if (bpf_probe_read_user(words, sizeof(words), id))
		return 0;
	for (int i = 0; i < ID_WORDS; i++)
		hash = mixed(hash, words[i]);
	return hash;
}

/* The slot of a variable among those of its process; NCCL_BIRTH_COUNT if it has none. */
static __always_inline __u32 slot_of(const struct nccl_births_value *value, __u64 address)
{
	__u32 slot;

	for (slot = 0; slot < NCCL_BIRTH_COUNT; slot++) {
		if (value->births[slot].address == address)
			break;
	}
	return slot;
}

static __always_inline void remember(__u32 pid, const struct nccl_birth *birth)
{
	struct nccl_births_value *value = bpf_map_lookup_elem(&nccl_births, &pid);
	__u32 slot;

	if (!value || !birth->address || !birth->identity)
		return;
	/* the variable may be reused: the communicator it held before was never used */
	slot = slot_of(value, birth->address);
	if (slot >= NCCL_BIRTH_COUNT)
		slot = value->next++ % NCCL_BIRTH_COUNT;
	value->births[slot] = *birth;
}

/* Creates the entry of a communicator at its first use; returns 0 if there is one now. */
__noinline int adopt(__u32 pid, __u64 comm)
{
	struct nccl_comm_key key = { .comm = comm, .pid = pid };
	struct nccl_process_value *process = counted(pid);
	struct nccl_births_value *value = bpf_map_lookup_elem(&nccl_births, &pid);
	struct nccl_comm_value fresh = {};
	__u32 slot;

	if (!process || !value)
		return -1;
	if (process->comm_count >= PROCESS_COMMS) {
		__sync_fetch_and_add(&process->lost_count, 1);
		return -1;
	}
	for (slot = 0; slot < NCCL_BIRTH_COUNT; slot++) {
		__u64 found = 0;

		if (value->births[slot].address)
			bpf_probe_read_user(&found, sizeof(found),
					    (void *)value->births[slot].address);
		if (found == comm)
			break;
	}
	if (slot < NCCL_BIRTH_COUNT) {
		fresh.birth = value->births[slot];
		value->births[slot].address = 0;
	}
	if (!bpf_map_update_elem(&nccl_comms, &key, &fresh, BPF_NOEXIST))
		__sync_fetch_and_add(&process->comm_count, 1);
	return 0;
}

static __always_inline struct nccl_comm_value *known(__u32 pid, __u64 comm)
{
	struct nccl_comm_key key = { .comm = comm, .pid = pid };
	struct nccl_comm_value *value = bpf_map_lookup_elem(&nccl_comms, &key);

	if (value || adopt(pid, comm))
		return value;
	return bpf_map_lookup_elem(&nccl_comms, &key);
}

static __always_inline struct nccl_comm_value *launched(__u64 comm, enum nccl_operation operation)
{
	__u32 pid = current_pid();
	struct nccl_process_value *process = counted(pid);
	struct nccl_comm_value *value;

	if (!process || !comm)
		return NULL;
	__sync_fetch_and_add(&process->launched_count, 1);
	value = known(pid, comm);
	if (value)
		__sync_fetch_and_add(&value->launched_count[operation], 1);
	return value;
}

#define OPERATION(function, comm, operation)                     \
	SEC("uprobe/" #function)                                 \
	int on_##function(struct pt_regs___kprobe *regs)         \
	{                                                        \
		launched((__u64)KPROBE_##comm(regs), operation); \
		return 0;                                        \
	}

OPERATION(ncclAllReduce, ARG5, NCCL_ALL_REDUCE)
OPERATION(ncclAllGather, ARG4, NCCL_ALL_GATHER)
OPERATION(ncclReduceScatter, ARG5, NCCL_REDUCE_SCATTER)
OPERATION(ncclBroadcast, ARG5, NCCL_BROADCAST)
OPERATION(ncclAlltoAll, ARG4, NCCL_ALL_TO_ALL)
OPERATION(ncclGather, ARG5, NCCL_GATHER)
OPERATION(ncclScatter, ARG5, NCCL_SCATTER)
OPERATION(ncclReduce, ARG6, NCCL_REDUCE)

/* Only the two ranks of a message count it equally, so messages are counted by peer. */
static __always_inline int messaged(struct pt_regs___kprobe *regs, enum nccl_operation operation)
{
	struct nccl_comm_value *comm = launched((__u64)KPROBE_ARG4(regs), operation);
	struct nccl_peer_key key = { .pid = current_pid(), .peer = (__u64)KPROBE_ARG3(regs) };
	struct nccl_process_value *process = counted(key.pid);
	struct nccl_peer_value fresh = {};
	struct nccl_peer_value *value;

	if (!comm || !process || !comm->birth.identity)
		return 0;
	key.identity = comm->birth.identity;
	value = bpf_map_lookup_elem(&nccl_peers, &key);
	if (!value) {
		if (process->peer_count >= PROCESS_PEERS) {
			__sync_fetch_and_add(&process->lost_count, 1);
			return 0;
		}
		if (!bpf_map_update_elem(&nccl_peers, &key, &fresh, BPF_NOEXIST))
			__sync_fetch_and_add(&process->peer_count, 1);
		value = bpf_map_lookup_elem(&nccl_peers, &key);
	}
	if (value)
		__sync_fetch_and_add(
			operation == NCCL_SEND ? &value->sent_count : &value->received_count, 1);
	return 0;
}

SEC("uprobe/ncclSend")
int on_ncclSend(struct pt_regs___kprobe *regs)
{
	return messaged(regs, NCCL_SEND);
}

SEC("uprobe/ncclRecv")
int on_ncclRecv(struct pt_regs___kprobe *regs)
{
	return messaged(regs, NCCL_RECEIVE);
}

/*
 * (comm *, ranks, ncclUniqueId by value, rank, ...): for the position of the id see kprobe.bpf.h.
 */
static __always_inline int born(struct pt_regs___kprobe *regs)
{
	struct nccl_birth birth = {
		.address = (__u64)KPROBE_ARG0(regs),
		.size = (__u64)KPROBE_ARG1(regs),
		.rank = (__u64)KPROBE_ARG_AFTER_STRUCT2(regs),
	};

	if (!counted(current_pid()))
		return 0;
	birth.identity = identity_of(KPROBE_STRUCT2(regs));
	remember(current_pid(), &birth);
	return 0;
}

SEC("uprobe/ncclCommInitRank")
int on_ncclCommInitRank(struct pt_regs___kprobe *regs)
{
	return born(regs);
}

SEC("uprobe/ncclCommInitRankConfig")
int on_ncclCommInitRankConfig(struct pt_regs___kprobe *regs)
{
	return born(regs);
}

/* (comm *, ranks, rank, number of ids, ids, config), since 2.23 */
SEC("uprobe/ncclCommInitRankScalable")
int on_ncclCommInitRankScalable(struct pt_regs___kprobe *regs)
{
	struct nccl_birth birth = {
		.address = (__u64)KPROBE_ARG0(regs),
		.size = (__u64)KPROBE_ARG1(regs),
		.rank = (__u64)KPROBE_ARG2(regs),
	};

	if (!counted(current_pid()))
		return 0;
	birth.identity = identity_of(KPROBE_ARG4(regs));
	remember(current_pid(), &birth);
	return 0;
}

/* (comm, colour, key, new comm *, config), since 2.18: all ranks split in the same order. */
SEC("uprobe/ncclCommSplit")
int on_ncclCommSplit(struct pt_regs___kprobe *regs)
{
	__u32 pid = current_pid();
	struct nccl_birth birth = {
		.address = (__u64)KPROBE_ARG3(regs),
		.key = (__u64)KPROBE_ARG2(regs),
		.is_split = 1,
	};
	__s32 colour = (__u64)KPROBE_ARG1(regs);
	struct nccl_comm_value *parent;

	if (!counted(pid))
		return 0;
	parent = known(pid, (__u64)KPROBE_ARG0(regs));
	if (!parent || !parent->birth.identity)
		return 0;
	parent->split_count++;
	birth.rank = parent->birth.rank;
	birth.identity = mixed(mixed(parent->birth.identity, parent->split_count), colour);
	/* a negative colour: this rank is in none of the new ones */
	if (colour >= 0)
		remember(pid, &birth);
	return 0;
}

static __always_inline int gone(struct pt_regs___kprobe *regs)
{
	struct nccl_comm_key key = { .comm = (__u64)KPROBE_ARG0(regs), .pid = current_pid() };
	struct nccl_process_value *process = counted(key.pid);

	if (!process || !key.comm)
		return 0;
	/* also one that was never used, because its variable may be reused for a later one */
	known(key.pid, key.comm);
	if (!bpf_map_delete_elem(&nccl_comms, &key))
		__sync_fetch_and_add(&process->comm_count, -1);
	return 0;
}

SEC("uprobe/ncclCommFinalize")
int on_ncclCommFinalize(struct pt_regs___kprobe *regs)
{
	return gone(regs);
}

SEC("uprobe/ncclCommDestroy")
int on_ncclCommDestroy(struct pt_regs___kprobe *regs)
{
	return gone(regs);
}

SEC("uprobe/ncclCommAbort")
int on_ncclCommAbort(struct pt_regs___kprobe *regs)
{
	return gone(regs);
}
