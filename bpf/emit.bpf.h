/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Sends records to user space: the common header, and counts of records that did not fit. */
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
 * Reserves a record in the ring buffer and fills its header; NULL, which is counted, if there is
 * no room. The caller writes every other byte (reserved memory has old content), and submits or
 * discards the record.
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
 * Fill levels of the ring up to which a kind of record is accepted. Records that any process can
 * cause by the thousand (lines of drivers, connections) leave half of the ring to announced
 * faults; forks and signals leave a quarter to exits.
 */
static __always_inline bool is_used_beyond(__u64 quarters)
{
	return bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) * 4 >
	       bpf_ringbuf_query(&events, BPF_RB_RING_SIZE) * quarters;
}

/*
 * A record that is dropped first when there are too many: it only informs, and no process is
 * unobserved without it.
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
 * A record that processes may cause in a loop, and whose loss is corrected by a later pass (a
 * child, a new program) or by the exit record (a signal).
 */
static __always_inline void *reserve_frequent(__u16 type, __u16 size, __u32 pid)
{
	if (is_used_beyond(3)) {
		COUNT_LOST(ring_count);
		return NULL;
	}
	return reserve_event(type, size, pid);
}

/* Wakes the reader, which then also gets earlier records that did not wake it. */
static __always_inline void send_event(void *event)
{
	bpf_ringbuf_submit(event, BPF_RB_FORCE_WAKEUP);
}

/*
 * A record that matters only at the next pass, which reads it. It wakes the reader only if many
 * accumulate.
 */
static __always_inline void leave_event(void *event)
{
	bpf_ringbuf_submit(event, is_used_beyond(1) ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

/*
 * Copies the whole field, so that no byte stays unwritten; bytes after the first zero have no
 * meaning.
 */
static __always_inline void copy_comm(__u8 *comm, struct task_struct *task)
{
	bpf_probe_read_kernel(comm, COMM_BYTES, task->comm);
}

#endif
