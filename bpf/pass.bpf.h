/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * State of one pass: its clocks, which processes are due, their counts, and the buffer for the
 * records.
 *
 * A pass visits the lead threads of every process. All threads of a process are visited only in
 * one of several passes, in turn, and only then are its totals exact.
 *
 * When the buffer is full or the call has worked for long enough, the pass is incomplete: the
 * reader takes the records and runs the walk again, which skips threads that it has already
 * visited.
 */
#ifndef KCOVER_PASS_BPF_H
#define KCOVER_PASS_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "account.bpf.h"
#include "compat.bpf.h"
#include "emit.bpf.h"

/* The number of the root of a hierarchy (kernfs) */
#define ROOT_GROUP 1

/* Passes between two samples of all threads of a process that is not sampled more closely. */
#define CALM_EVERY 20

/*
 * One in this many passes visits unwatched processes, because nothing of a stranger is in any
 * cache.
 */
#define STRANGERS_EVERY 4

/*
 * Work after which a call returns to user space, which is the only place where a kernel without
 * preemption can schedule other tasks. The unit is a visit to an unchanged thread (0.1 us, or 0.4
 * us if its memory is not cached): a call takes 0.3 to 0.7 ms.
 */
#define MOST_WORK   1600
#define LONGER_WORK 8

/*
 * An iterator that returns this pauses: the reader gets EAGAIN, or what was written so far, and
 * the next read begins with the same object.
 */
#define RETURN_TO_USER_SPACE 1

/*
 * `in_turns`: nearly all passes visit only lead threads, because all threads of all processes are
 * due in the same pass.
 */
static __always_inline void begin_pass(struct pass_value *pass, bool in_turns)
{
	pass->used_bytes = 0;
	pass->work = 0;
	pass->is_continued = pass->is_incomplete;
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
	pass->process_count = 0;
	pass->pid_sum = 0;
	if (pass->id % STRANGERS_EVERY == 0) {
		pass->stranger_count = 0;
		pass->stranger_sum = 0;
	}
	pass->leaders_only = in_turns && !pass->is_whole && pass->least_every > 1 &&
			     pass->id % CALM_EVERY && pass->id % pass->least_every;
}

static __always_inline void see_cgroup(struct pass_value *pass, struct task_struct *task)
{
	struct cgroup_value seen = { .pass_id = pass->id }, *group;
	__u64 id = cgroup_id(task);

	group = bpf_map_lookup_elem(&cgroups, &id);
	if (group)
		group->pass_id = pass->id;
	else
		bpf_map_update_elem(&cgroups, &id, &seen, BPF_NOEXIST);
}

/* The first process of an owner in a pass completes the count of the previous pass. */
static __always_inline void count_in_owner(struct process_value *process, struct pass_value *pass,
					   struct task_struct *task)
{
	struct owner_value *owner = owner_of(owner_id(process, task));

	if (!owner)
		return;
	if (owner->pass_id != pass->id) {
		owner->pass_id = pass->id;
		owner->whole_process_count = owner->process_count;
		owner->whole_thread_count = owner->thread_count;
		owner->process_count = 0;
		owner->thread_count = 0;
	}
	owner->process_count++;
	owner->thread_count += process->totals.thread_count;
}

/*
 * An unwatched process in the control group of a watched one: it may have joined the job. The
 * root group does not count, because on hosts without cgroup v2 it contains all processes.
 */
static __always_inline void see_stranger(struct pass_value *pass, struct task_struct *leader)
{
	struct cgroup_value *group;
	__u64 id;

	if (pass->id % STRANGERS_EVERY || pass->is_continued || leader->exit_state)
		return;
	id = cgroup_id(leader);
	if (id <= ROOT_GROUP)
		return;
	group = bpf_map_lookup_elem(&cgroups, &id);
	if (!group || group->pass_id + 1 < pass->id)
		return;
	pass->stranger_count++;
	pass->stranger_sum += leader->tgid;
}

/*
 * `turn`: number of the pass, shifted for each process so that not all are due in the same pass.
 */
static __always_inline bool is_due(struct process_value *process, struct pass_value *pass,
				   __u64 turn, __u32 every)
{
	return pass->is_whole || !process->whole_id || process->begins ||
	       process->totals.unseen_count || turn % (every ?: 1) == 0;
}

/* A new level of detail begins with a visit to all threads, even if none is due. */
static __always_inline void set_detail(struct process_value *process, __u32 detail)
{
	if (!detail || process->whole_id == process->pass_id)
		process->begins = 0;
	if (detail > process->detail)
		process->begins = 1;
	process->detail = detail;
}

static __always_inline void begin_totals(struct totals_event *totals, struct pass_value *pass,
					 struct task_struct *task, __u32 pid)
{
	fill_header(&totals->header, EVENT_TOTALS, sizeof(*totals), pid, pass->boottime_ns);
	totals->throttled_ns = throttled_ns(task);
	totals->ppid = task->real_parent->tgid;
	totals->thread_count = 0;
	totals->unseen_count = 0;
	totals->forsaken_count = 0;
}

static __always_inline void begin_process(struct process_value *process, struct pass_value *pass,
					  struct task_struct *task, __u32 pid, __u64 turn)
{
	struct detail_value *wanted = bpf_map_lookup_elem(&details, &pid);
	__u32 every = wanted ? wanted->every : CALM_EVERY;

	see_cgroup(pass, task);
	count_in_owner(process, pass, task);
	pass->process_count++;
	pass->pid_sum += pid;
	set_detail(process, wanted ? wanted->detail : DETAIL_OFF);
	process->lead_tid = wanted ? wanted->lead_tid : 0;
	process->next_tid = 0;
	process->pass_id = pass->id;
	if (pass->leaders_only || !is_due(process, pass, turn, every))
		return;
	begin_totals(&process->totals, pass, task, pid);
	process->whole_id = pass->id;
}

/* True if this pass visits all threads of the process. */
static __always_inline bool is_whole(struct process_value *process, struct pass_value *pass)
{
	return process->whole_id == pass->id;
}

/* True for the threads that represent their process. */
static __always_inline bool is_lead(struct process_value *process, __u32 pid, __u32 tid)
{
	return tid == pid || tid == process->lead_tid;
}

/* One more visit; false if the call must return to user space. */
static __always_inline bool has_time(struct pass_value *pass, __u64 work)
{
	pass->work += work;
	return pass->work < MOST_WORK;
}

/*
 * Once per visit to all threads: in between, the activity of the lead threads is not that of the
 * process.
 */
static __always_inline void count_thread(struct process_value *process, struct pass_value *pass,
					 struct thread_sample *sample)
{
	if (!is_whole(process, pass))
		return;
	if (sample->state != THREAD_ZOMBIE)
		process->totals.thread_count++;
	process->totals.forsaken_count += sample->is_forsaken;
}

/*
 * One more thread of this process without room: each visit tries again, but it is counted as lost
 * once.
 */
static __always_inline void count_unseen(struct process_value *process, struct pass_value *pass)
{
	if (!is_whole(process, pass))
		return;
	process->totals.unseen_count++;
	if (process->totals.unseen_count <= process->unseen_reported)
		return;
	process->unseen_reported = process->totals.unseen_count;
	COUNT_LOST(thread_count);
}

/*
 * Reserves room for a record in the buffer; NULL if there is none, and then the pass is
 * incomplete.
 */
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
