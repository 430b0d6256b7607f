// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The sampler's walk in one call, which spares the price of an iterator's visit per thread. Needs
 * the open-coded task iterator of c68a78ffe2cb ("bpf: Introduce task open coded iterator
 * kfuncs", 6.7). It is attached as an iterator over one single task (the reader's), and that visit
 * does it all.
 */
#include "sample.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* include/uapi/linux/bpf.h has no names for them (kernel/bpf/task_iter.c) */
#define ALL_PROCESSES 0
#define ALL_THREADS   1

struct bpf_iter_task {
	__u64 opaque[3];
} __attribute__((aligned(8)));

extern int bpf_iter_task_new(struct bpf_iter_task *it, struct task_struct *task, unsigned int flags)
	__ksym;
extern struct task_struct *bpf_iter_task_next(struct bpf_iter_task *it) __ksym;
extern void bpf_iter_task_destroy(struct bpf_iter_task *it) __ksym;
extern struct task_struct *bpf_task_from_pid(int pid) __ksym;
extern void bpf_task_release(struct task_struct *task) __ksym;

/*
 * Not static, so that the verifier checks it once and not for every turn of the loop. Such a
 * function takes numbers only, hence the second look-up of everything.
 */
__noinline int look_longer(__u32 pid, __u32 tid)
{
	struct process_value *process = watched(pid);
	struct pass_value *pass = current_pass();
	struct task_struct *task;

	if (!process || !pass)
		return 0;
	task = bpf_task_from_pid(tid);
	if (!task)
		return 0;
	if (process->pass_id != pass->id)
		begin_process(process, pass, task, pid);
	look(pass, process, task);
	bpf_task_release(task);
	return 0;
}

static __always_inline bool look_at(struct pass_value *pass, struct task_struct *task)
{
	__u32 pid = task->tgid, tid;
	struct process_value *process = watched(pid);
	struct thread_sample *sample;

	if (!process)
		return true;
	tid = task->pid;
	sample = sample_of(tid);
	if (process->pass_id != pass->id || !sample || !quick_look(pass, process, task, sample))
		look_longer(pid, tid);
	return !pass->is_incomplete;
}

static __always_inline void walk_all_threads(struct pass_value *pass)
{
	struct bpf_iter_task all;
	struct task_struct *task;

	bpf_iter_task_new(&all, NULL, ALL_THREADS);
	while ((task = bpf_iter_task_next(&all))) {
		if (!look_at(pass, task))
			break;
	}
	bpf_iter_task_destroy(&all);
}

static __always_inline void send_totals(struct pass_value *pass, struct process_value *process)
{
	struct totals_event *event = append(pass, sizeof(*event));

	if (!event)
		return;
	*event = process->totals;
	process->reported_id = pass->id;
}

static __always_inline void send_all_totals(struct pass_value *pass)
{
	struct process_value *process;
	struct bpf_iter_task all;
	struct task_struct *leader;
	__u32 pid;

	bpf_iter_task_new(&all, NULL, ALL_PROCESSES);
	while ((leader = bpf_iter_task_next(&all))) {
		pid = leader->tgid;
		process = watched(pid);
		if (!process || process->pass_id != pass->id || process->reported_id == pass->id)
			continue;
		send_totals(pass, process);
		if (pass->is_incomplete)
			break;
	}
	bpf_iter_task_destroy(&all);
}

SEC("iter/task")
int walk_threads(struct bpf_iter__task *ctx)
{
	struct pass_value *pass = current_pass();

	if (!pass || !ctx->task)
		return 0;
	begin_pass(pass);
	walk_all_threads(pass);
	if (!pass->is_incomplete)
		send_all_totals(pass);
	return 0;
}
