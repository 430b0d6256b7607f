/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Adds a thread's counters since its last sample to its process: in the sampler and at its exit.
 */
#ifndef KCOVER_ACCOUNT_BPF_H
#define KCOVER_ACCOUNT_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "maps.bpf.h"

static __always_inline __u64 cgroup_id(struct task_struct *task)
{
	return BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id);
}

static __always_inline __u64 owner_id(struct process_value *process, struct task_struct *task)
{
	return process->owner_id ?: cgroup_id(task);
}

static __always_inline struct owner_value *owner_of(__u64 id)
{
	struct owner_value *owner = bpf_map_lookup_elem(&owners, &id), fresh = {};

	if (owner)
		return owner;
	bpf_map_update_elem(&owners, &id, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&owners, &id);
}

#define SHARE_OF(process, KIND) ((process)->owner_id ? OWNER_##KIND : CGROUP_##KIND)

/*
 * Whether the owner of `process` has used up its share of `kind` (process or thread). If not,
 * counts one more.
 */
#define IS_SHARE_FULL(process_, task, kind, KIND)                                 \
	({                                                                        \
		struct owner_value *owner_ = owner_of(owner_id(process_, task));  \
		__u64 share_ = SHARE_OF(process_, KIND);                          \
		bool full_ = owner_ && (owner_->whole_##kind##_count >= share_ || \
					owner_->kind##_count >= share_);          \
		if (owner_ && !full_) {                                           \
			__sync_fetch_and_add(&owner_->whole_##kind##_count, 1);   \
			__sync_fetch_and_add(&owner_->kind##_count, 1);           \
		}                                                                 \
		full_;                                                            \
	})

static __always_inline bool has_room_for_socket(struct process_value *process,
						struct task_struct *task)
{
	struct owner_value *owner = owner_of(owner_id(process, task));

	return !owner || owner->socket_count < SHARE_OF(process, SOCKETS);
}

/*
 * Reserves an entry for one more socket of a process, for `sample`. False if its owner has used
 * up its share. That is counted as lost once, so that the socket is not sent again in each pass.
 */
static __always_inline bool take_socket(struct process_value *process, struct task_struct *task,
					struct socket_sample *sample)
{
	struct owner_value *owner;

	sample->owner_id = owner_id(process, task);
	owner = owner_of(sample->owner_id);
	if (!owner || owner->socket_count < SHARE_OF(process, SOCKETS)) {
		if (owner)
			__sync_fetch_and_add(&owner->socket_count, 1);
		return true;
	}
	if (!process->socket_refused) {
		process->socket_refused = 1;
		COUNT_LOST(socket_count);
	}
	return false;
}

static __always_inline void drop_socket(struct socket_sample *known)
{
	struct owner_value *owner = bpf_map_lookup_elem(&owners, &known->owner_id);

	if (owner && owner->socket_count)
		__sync_fetch_and_add(&owner->socket_count, -1);
}

/*
 * A counter that decreased belongs to a thread that took over the tid (exec), so it starts at
 * zero.
 */
#define ADD_SINCE(total, was, now_value)                                           \
	do {                                                                       \
		__u64 now_ = (now_value);                                          \
		__u64 was_ = (was);                                                \
		__sync_fetch_and_add(&(total), now_ >= was_ ? now_ - was_ : now_); \
		(was) = now_;                                                      \
	} while (0)

/*
 * `sample` holds the counters of the thread's last sample; afterwards it holds the current ones.
 * A thread seen for the first time starts from zeros if it began while its process was watched.
 */
static __always_inline void account(struct totals_event *totals, struct thread_sample *sample,
				    struct task_struct *task)
{
	ADD_SINCE(totals->cpu_ns, sample->cpu_ns, task->se.sum_exec_runtime);
	ADD_SINCE(totals->major_faults, sample->major_faults, task->maj_flt);
	if (bpf_core_field_exists(task->ioac.rchar)) {
		ADD_SINCE(totals->read_chars, sample->read_chars, task->ioac.rchar);
		ADD_SINCE(totals->write_chars, sample->write_chars, task->ioac.wchar);
	}
	if (bpf_core_field_exists(task->ioac.read_bytes)) {
		ADD_SINCE(totals->read_bytes, sample->read_bytes, task->ioac.read_bytes);
		ADD_SINCE(totals->write_bytes, sample->write_bytes, task->ioac.write_bytes);
	}
}

/* Stores the current counters, so that earlier activity is not counted. */
static __always_inline void set_baseline(struct thread_sample *sample, struct task_struct *task)
{
	struct totals_event ignored = {};

	account(&ignored, sample, task);
}

#endif
