/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Maps that all families share. Each object declares them. The loader creates them once, with the
 * base object, and passes the same maps to every later object.
 */
#ifndef KCOVER_MAPS_BPF_H
#define KCOVER_MAPS_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "events.h"

/* How closely a process is sampled. */
enum detail {
	DETAIL_OFF = 0,
	DETAIL_ON = 1, /* lead threads, and threads that are not asleep, if they ran; descriptors */
	DETAIL_ALL = 2, /* the same, and sleeping threads */
};

/* What was observed of a thread at its last sample that differed from the previous one. */
struct thread_sample {
	__u64 pass_id; /* first field: user space finds stale entries by it */
	__u64 sampled_ns;
	__u64 start_ns;
	__u64 switch_count;
	__u32 raw_state;
	__u32 state; /* enum thread_state */
	__u32 is_forsaken;
	__u32 pad;
	__u64 cpu_ns;
	__u64 site_since_ns;
	__u64 user_sp;
	__u64 arg0;
	__s32 syscall;
	__u32 moved;
	__u64 read_bytes;
	__u64 write_bytes;
	__u64 read_chars;
	__u64 write_chars;
	__u64 major_faults;
};

/*
 * Records of one pass, back to back; `pass_value.used_bytes` is their length. When the buffer is
 * full the walk returns to user space, as it does when it has worked for long enough
 * (pass.bpf.h).
 */
struct sample_buffer {
	__u8 bytes[96 * 1024];
};

struct socket_sample {
	__u64 pass_id;  /* first, as above */
	__u64 owner_id; /* second: user space counts what each has */
	__u64 inode;
	__u64 acked_bytes;
	__u64 received_bytes;
	__u64 changed_ns; /* the last pass that saw it move */
	__u64 retransmit_ns;
	__u32 pid;
	__u32 state;
	__u32 unread_bytes;
	__u32 unsent_bytes;
	__u32 unacked_bytes;
	__u32 losses; /* retransmissions, backoff and probes in one word */
};

/*
 * Shares of the tables. A process that forks or connects endlessly must leave room for the ranks
 * of others, so a pod gets at most an eighth. User space sets the pod (without cgroup v2 as the
 * hierarchy, all processes are in the root group). Without pods, the share belongs to the control
 * group.
 */
#define MAX_PROCESSES    16384
#define MAX_THREADS      131072
#define MAX_SOCKETS      131072
#define OWNER_PROCESSES  (MAX_PROCESSES / 8)
#define OWNER_THREADS    (MAX_THREADS / 8)
#define OWNER_SOCKETS    (MAX_SOCKETS / 8)
#define CGROUP_PROCESSES 4096
#define CGROUP_THREADS   32768
#define CGROUP_SOCKETS   65536

/*
 * Usage of the processes of one pod, or of one control group. Processes and threads are counted
 * from zero in each pass, sockets whenever user space sweeps their table, so that errors do not
 * accumulate.
 */
struct owner_value {
	__u64 pass_id;
	__u64 process_count; /* in this pass so far, forks included */
	__u64 thread_count;
	__u64 whole_process_count; /* of the previous pass, with later additions */
	__u64 whole_thread_count;
	__u64 socket_count;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64); /* owner id, or cgroup id */
	__type(value, struct owner_value);
} owners SEC(".maps");

/* Control groups of watched processes. */
struct cgroup_value {
	__u64 pass_id; /* the last that saw one */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64); /* cgroup id */
	__type(value, struct cgroup_value);
} cgroups SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PROCESSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* pid */
	__type(value, struct process_value);
} processes SEC(".maps");

/* Processes that are not sampled as in calm times. Only user space writes to it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_PROCESSES);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* pid */
	__type(value, struct detail_value);
} details SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_THREADS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* tid */
	__type(value, struct thread_sample);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SOCKETS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64); /* address of the struct sock */
	__type(value, struct socket_sample);
} sockets SEC(".maps");

/*
 * The next three are mapped into the reader's memory, so that it can read them without a system
 * call.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct pass_value);
} pass SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct sample_buffer);
} samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct lost_value);
} lost SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} events SEC(".maps");

static __always_inline struct process_value *watched(__u32 pid)
{
	return bpf_map_lookup_elem(&processes, &pid);
}

static __always_inline struct pass_value *current_pass(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&pass, &zero);
}

#define COUNT_LOST(field)                                                      \
	do {                                                                   \
		__u32 zero_ = 0;                                               \
		struct lost_value *lost_ = bpf_map_lookup_elem(&lost, &zero_); \
		if (lost_)                                                     \
			__sync_fetch_and_add(&lost_->field, 1);                \
	} while (0)

#endif
