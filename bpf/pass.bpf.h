/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The books of one pass over all threads: its clocks, the counts of each process, and the buffer
 * that takes the records.
 *
 * When the buffer is full, the pass is incomplete: the reader takes the records out and runs the
 * walk again, which skips every thread it already looked at in this pass.
 */
#ifndef KCOVER_PASS_BPF_H
#define KCOVER_PASS_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "compat.bpf.h"
#include "emit.bpf.h"

static __always_inline void begin_pass(struct pass_value *pass)
{
	pass->used_bytes = 0;
	if (pass->is_incomplete) {
		pass->is_incomplete = 0;
		return;
	}
	pass->id++;
	pass->previous_ns = pass->boottime_ns;
	pass->sched_ns = scheduler_clock();
	pass->boottime_ns = bpf_ktime_get_boot_ns();
	pass->monotonic_ns = bpf_ktime_get_ns();
	pass->jiffies = bpf_jiffies64();
}

/* The first process of a control group in a pass closes the count of the pass before. */
static __always_inline void count_in_cgroup(struct process_value *process, struct pass_value *pass,
					    struct task_struct *task)
{
	struct cgroup_value *group = cgroup_of(task), fresh = {};
	__u64 id = cgroup_id(task);

	if (!group) {
		bpf_map_update_elem(&cgroups, &id, &fresh, BPF_NOEXIST);
		group = cgroup_of(task);
	}
	if (!group)
		return;
	if (group->pass_id != pass->id) {
		group->pass_id = pass->id;
		group->whole_process_count = group->process_count;
		group->whole_thread_count = group->thread_count;
		group->process_count = 0;
		group->thread_count = 0;
	}
	group->process_count++;
	group->thread_count += process->totals.thread_count;
}

static __always_inline void begin_process(struct process_value *process, struct pass_value *pass,
					  struct task_struct *task, __u32 pid)
{
	struct totals_event *totals = &process->totals;
	__u32 *detail = bpf_map_lookup_elem(&details, &pid);

	count_in_cgroup(process, pass, task);
	fill_header(&totals->header, EVENT_TOTALS, sizeof(*totals), pid, pass->boottime_ns);
	totals->ppid = task->real_parent->tgid;
	totals->thread_count = 0;
	totals->unseen_count = 0;
	if (!detail)
		process->detail = DETAIL_OFF;
	else
		process->detail = process->detail == DETAIL_OFF ? DETAIL_BEGIN : DETAIL_ON;
	process->pass_id = pass->id;
}

static __always_inline void count_thread(struct totals_event *totals, __u32 state)
{
	if (state != THREAD_ZOMBIE)
		totals->thread_count++;
}

/* Room for a record in the buffer, or NULL: then the pass is incomplete. */
static __always_inline void *append(struct pass_value *pass, __u64 size)
{
	struct sample_buffer *buffer;
	__u64 used = pass->used_bytes;
	__u32 zero = 0;

	buffer = bpf_map_lookup_elem(&samples, &zero);
	if (!buffer || used > sizeof(buffer->bytes) - size) {
		pass->is_incomplete = 1;
		return NULL;
	}
	pass->used_bytes = used + size;
	return buffer->bytes + used;
}

#endif
