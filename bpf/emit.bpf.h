/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Records on their way to user space: one header for all, and a count of what did not fit. */
#ifndef KCOVER_EMIT_BPF_H
#define KCOVER_EMIT_BPF_H

#include "maps.bpf.h"

static __always_inline void fill_header(struct event_header *header, __u16 type, __u16 size,
					__u32 pid, __u64 boottime_ns)
{
	header->type = type;
	header->size = size;
	header->pid = pid;
	header->boottime_ns = boottime_ns;
}

/*
 * A record in the ring buffer with its header filled, or NULL, which is counted. The caller writes
 * every other byte (reserved memory holds what was there before) and submits it.
 */
static __always_inline void *reserve_event(__u16 type, __u16 size, __u32 pid)
{
	struct event_header *header = bpf_ringbuf_reserve(&events, size, 0);

	if (!header) {
		COUNT_LOST(ring_count);
		return NULL;
	}
	fill_header(header, type, size, pid, bpf_ktime_get_boot_ns());
	return header;
}

/* The whole field, so that no byte stays unwritten; what follows the first zero has no meaning. */
static __always_inline void copy_comm(__u8 *comm, struct task_struct *task)
{
	bpf_probe_read_kernel(comm, COMM_BYTES, task->comm);
}

#endif
