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
 * every other byte (reserved memory holds what was there before), and sends or leaves it.
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

/*
 * Shares of the ring that a record may find used already. What any process can cause by the
 * thousand (lines of drivers, connections) leaves half of it to announced faults; forks and
 * signals leave a quarter to exits.
 */
static __always_inline bool is_used_beyond(__u64 quarters)
{
	return bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) * 4 >
	       bpf_ringbuf_query(&events, BPF_RB_RING_SIZE) * quarters;
}

/* A record that is dropped first in a flood: it informs, and no process is unobserved without it.
 */
static __always_inline void *reserve_message(__u16 type, __u16 size, __u32 pid)
{
	if (is_used_beyond(2)) {
		COUNT_LOST(message_count);
		return NULL;
	}
	return reserve_event(type, size, pid);
}

/*
 * A record that processes may cause in a loop, and whose loss a later pass makes up for (a child, a
 * new program), or an exit (a signal).
 */
static __always_inline void *reserve_frequent(__u16 type, __u16 size, __u32 pid)
{
	if (is_used_beyond(3)) {
		COUNT_LOST(ring_count);
		return NULL;
	}
	return reserve_event(type, size, pid);
}

/* Wakes the reader, whatever lies before this record that did not. */
static __always_inline void send_event(void *event)
{
	bpf_ringbuf_submit(event, BPF_RB_FORCE_WAKEUP);
}

/* A record that changes nothing before the next pass, which takes it; unless many of them come. */
static __always_inline void leave_event(void *event)
{
	bpf_ringbuf_submit(event, is_used_beyond(1) ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

/* The whole field, so that no byte stays unwritten; what follows the first zero has no meaning. */
static __always_inline void copy_comm(__u8 *comm, struct task_struct *task)
{
	bpf_probe_read_kernel(comm, COMM_BYTES, task->comm);
}

#endif
