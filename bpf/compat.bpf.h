/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * One helper for each difference between kernels. Features are looked up in the kernel's BTF,
 * never derived from its version number.
 */
#ifndef KCOVER_COMPAT_BPF_H
#define KCOVER_COMPAT_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "arch.bpf.h"
#include "events.h"

/* include/linux/sched.h */
#define TASK_INTERRUPTIBLE   0x0001
#define TASK_UNINTERRUPTIBLE 0x0002
#define TASK_STOPPED_BIT     0x0004
#define TASK_TRACED_BIT      0x0008
#define TASK_WAKING          0x0200
#define TASK_NOLOAD          0x0400
#define TASK_FROZEN          0x8000
#define PF_EXITING           0x00000004
#define PF_FROZEN            0x00010000
/* include/linux/sched/jobctl.h */
#define JOBCTL_TRAP_FREEZE (1UL << 23)

/* include/uapi/linux/sched.h */
#define SCHED_NORMAL 0
#define SCHED_BATCH  3
#define SCHED_IDLE   5
/* include/linux/sched/ext.h: a task that the loaded BPF scheduler runs has both bits of its state
 * set */
#define SCX_TASK_ENABLED (3U << 8)

/* Stacks that are not mapped page by page: 16 KiB on both architectures, without KASAN. */
#define KERNEL_STACK_BYTES 16384

/*
 * 2f064a59a11f ("sched: Change task_struct::state", 5.14) renamed the field and halved its size.
 */
struct task_struct___before_5_14 {
	long state;
} __attribute__((preserve_access_index));

static __always_inline __u32 raw_state(struct task_struct *task)
{
	struct task_struct___before_5_14 *old = (void *)task;

	if (bpf_core_field_exists(task->__state))
		return task->__state;
	return BPF_CORE_READ(old, state);
}

/*
 * A frozen thread has three representations, depending on the kernel. Since f5d39b020809
 * ("freezer,sched: Rewrite core freezer logic", 6.1) it has a state of its own kind. Before that,
 * it has a flag on a sleeping state (the bit is unused since). And the freezer of cgroup v2 uses a
 * job control trap.
 */
static __always_inline __u32 thread_state(struct task_struct *task, __u32 state)
{
	if (task->exit_state)
		return THREAD_ZOMBIE;
	if (!state || state & TASK_WAKING)
		return THREAD_RUNNING;
	if (state & TASK_FROZEN)
		return THREAD_FROZEN;
	if (state & TASK_STOPPED_BIT)
		return THREAD_STOPPED;
	if (state & TASK_TRACED_BIT)
		return THREAD_TRACED;
	if (state & TASK_UNINTERRUPTIBLE) {
		if (task->flags & PF_FROZEN)
			return THREAD_FROZEN;
		return state & TASK_NOLOAD ? THREAD_SLEEPING : THREAD_UNINTERRUPTIBLE;
	}
	if (state & TASK_INTERRUPTIBLE)
		return task->jobctl & JOBCTL_TRAP_FREEZE ? THREAD_FROZEN : THREAD_SLEEPING;
	return THREAD_OTHER;
}

/*
 * The size of a mapped stack, which is larger with pages of 64 KiB or KASAN: the size that
 * vmalloc() stores, minus the guard page behind it.
 */
static __always_inline __u64 kernel_stack_bytes(struct task_struct *task)
{
	__u64 size, page_count;

	if (!bpf_core_field_exists(task->stack_vm_area))
		return KERNEL_STACK_BYTES;
	size = BPF_CORE_READ(task, stack_vm_area, size);
	page_count = BPF_CORE_READ(task, stack_vm_area, nr_pages);
	if (!size || !page_count)
		return KERNEL_STACK_BYTES;
	return size - size / (page_count + 1);
}

/* The helper came with dd6e10fbd9fb ("bpf: Add bpf_task_pt_regs() helper", 5.15). */
static __always_inline struct pt_regs *user_registers(struct task_struct *task)
{
	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_task_pt_regs))
		return (struct pt_regs *)bpf_task_pt_regs(task);
	return (void *)task->stack + kernel_stack_bytes(task) - bpf_core_type_size(struct pt_regs);
}

/*
 * Only the fair class records how much a thread had used when it got its CPU (set_next_entity()).
 */
static __always_inline bool is_scheduled_fairly(struct task_struct *self)
{
	__u32 policy = BPF_CORE_READ(self, policy);

	if (bpf_core_field_exists(self->scx.flags) &&
	    (BPF_CORE_READ(self, scx.flags) & SCX_TASK_ENABLED) == SCX_TASK_ENABLED)
		return false;
	return policy == SCHED_NORMAL || policy == SCHED_BATCH || policy == SCHED_IDLE;
}

/*
 * The scheduler's clock, which no helper returns: when the calling thread got its CPU, plus what
 * it has used since. The tick updates that sum, so the result is late by at most one tick. 0 if
 * this thread's scheduling class does not record it.
 */
static __always_inline __u64 scheduler_clock(void)
{
	struct task_struct *self = (void *)bpf_get_current_task();

	if (!bpf_core_field_exists(self->sched_info.last_arrival) ||
	    !bpf_core_field_exists(self->se.prev_sum_exec_runtime) || !is_scheduled_fairly(self))
		return 0;
	return BPF_CORE_READ(self, sched_info.last_arrival) +
	       BPF_CORE_READ(self, se.sum_exec_runtime) -
	       BPF_CORE_READ(self, se.prev_sum_exec_runtime);
}

#define DEEPEST_GROUP 8

/*
 * How long the control groups of a task were throttled by their CPU quotas, summed over the
 * processors that they wanted. 0 in a kernel without quotas.
 */
static __always_inline __u64 throttled_ns(struct task_struct *task)
{
	struct task_group *group;
	__u64 sum = 0;

	if (!bpf_core_field_exists(task->sched_task_group))
		return 0;
	group = BPF_CORE_READ(task, sched_task_group);
	if (!bpf_core_field_exists(group->cfs_bandwidth))
		return 0;
	for (int depth = 0; depth < DEEPEST_GROUP && group; depth++) {
		sum += BPF_CORE_READ(group, cfs_bandwidth.throttled_time);
		group = BPF_CORE_READ(group, parent);
	}
	return sum;
}

/* 72ba14deb40a ("mm: Update mark_victim tracepoints fields", 6.9) passes the task, not its tid. */
struct trace_event_raw_mark_victim {
	__u32 uid;
} __attribute__((preserve_access_index));

static __always_inline bool mark_victim_passes_task(void)
{
	return bpf_core_field_exists(((struct trace_event_raw_mark_victim *)0)->uid);
}

#endif
