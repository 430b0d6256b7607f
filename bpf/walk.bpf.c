// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The sampler's walk in one call: from process to process, and over the threads only of those
 * that are watched and due. Needs the open-coded task iterator of c68a78ffe2cb ("bpf: Introduce
 * task open coded iterator kfuncs", 6.7). It is attached as an iterator over one single task (the
 * reader's), and the visit to that task does the whole walk.
 */
#include "sample.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* include/uapi/linux/bpf.h has no names for them (kernel/bpf/task_iter.c) */
#define ALL_PROCESSES  0
#define THREADS_OF_ONE 2

/* More threads per process than are ever sampled. */
#define MOST_TURNS 262144

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
 * Not static, so that the verifier checks it once and not for every iteration of the loop. Such a
 * function takes only numbers as arguments, so everything is looked up a second time.
 */
__noinline int sample_longer(__u32 pid, __u32 tid)
{
	struct process_value *process = watched(pid);
	struct pass_value *pass = current_pass();
	struct task_struct *task;

	if (!process || !pass)
		return 0;
	task = bpf_task_from_pid(tid);
	if (!task)
		return 0;
	if (task->tgid == (int)pid) {
		if (process->pass_id != pass->id)
			begin_process(process, pass, task, pid, pass->id + pid);
		sample_task(pass, process, task);
	}
	bpf_task_release(task);
	return 0;
}

/*
 * False if the call must end at this thread, with which the next call begins. A thread that this
 * pass has already visited costs no work. A thread without room has no sample that shows this,
 * and would be counted again if it was visited before the call ended.
 */
static __always_inline bool sample_thread(struct pass_value *pass, struct process_value *process,
					  struct task_struct *task)
{
	__u32 pid = task->tgid, tid = task->pid;
	struct thread_sample *sample = sample_of(tid);

	if (sample && sample->pass_id == pass->id)
		return true;
	if (!has_time(pass, 1))
		return false;
	if (sample && quick_sample(pass, process, task, sample))
		return true;
	sample_longer(pid, tid);
	return !pass->is_incomplete;
}

/*
 * The thread at which the walk over a process stopped in the previous call, or its first thread.
 */
static __always_inline struct task_struct *first_thread(struct process_value *process, __u32 pid)
{
	__u32 tid = process->next_tid;
	struct task_struct *task = tid ? bpf_task_from_pid(tid) : NULL;

	if (task && task->tgid == (int)pid)
		return task;
	if (task)
		bpf_task_release(task);
	return bpf_task_from_pid(pid);
}

/*
 * All threads of one process. In the kernel's first version the iterator goes round in a circle,
 * which does not end if its first thread was replaced meanwhile (exec); hence the count.
 */
__noinline int sample_each_thread(__u32 pid)
{
	struct process_value *process = watched(pid);
	struct pass_value *pass = current_pass();
	struct task_struct *first, *task;
	struct bpf_iter_task threads;

	if (!process || !pass)
		return 0;
	first = first_thread(process, pid);
	if (!first)
		return 0;
	process->next_tid = 0;
	pass->turns = 0;
	bpf_iter_task_new(&threads, first, THREADS_OF_ONE);
	while ((task = bpf_iter_task_next(&threads))) {
		if (++pass->turns > MOST_TURNS)
			break;
		if (!sample_thread(pass, process, task)) {
			process->next_tid = task->pid;
			pass->is_incomplete = 1;
			break;
		}
	}
	bpf_iter_task_destroy(&threads);
	bpf_task_release(first);
	return 0;
}

static __always_inline void send_totals(struct pass_value *pass, struct process_value *process)
{
	struct totals_event *event = append(pass, sizeof(*event));

	if (!event)
		return;
	*event = process->totals;
	process->reported_id = pass->id;
}

/*
 * Its first thread, where the walk begins; then all threads, or those that represent the process.
 */
__noinline int visit(__u32 pid)
{
	struct process_value *process = watched(pid);
	struct pass_value *pass = current_pass();

	if (!process || !pass)
		return 0;
	sample_longer(pid, pid);
	if (is_whole(process, pass))
		sample_each_thread(pid);
	else if (process->lead_tid)
		sample_longer(pid, process->lead_tid);
	if (pass->is_incomplete)
		return 0;
	if (is_whole(process, pass))
		send_totals(pass, process);
	else
		process->reported_id = pass->id;
	if (!has_time(pass, LONGER_WORK))
		pass->is_incomplete = 1;
	return 0;
}

SEC("iter/task")
int walk_threads(struct bpf_iter__task *ctx)
{
	struct pass_value *pass = current_pass();
	struct bpf_iter_task all;
	struct process_value *process;
	struct task_struct *leader;
	__u32 pid;

	if (!pass || !ctx->task)
		return 0;
	begin_pass(pass, false);
	bpf_iter_task_new(&all, NULL, ALL_PROCESSES);
	while ((leader = bpf_iter_task_next(&all))) {
		pid = leader->tgid;
		process = watched(pid);
		if (!process)
			see_stranger(pass, leader);
		if (!process || process->reported_id == pass->id)
			continue;
		visit(pid);
		if (pass->is_incomplete)
			break;
	}
	bpf_iter_task_destroy(&all);
	return 0;
}
