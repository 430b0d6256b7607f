// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The base layer: one walk over all threads of the machine, by the task iterator that every
 * kernel since 5.8 has. It costs nothing between passes. On kernels that support it, walk.bpf.c
 * visits only the watched processes.
 */
#include "sample.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * Cost of one step of this iterator in addition to the visit, in visits to an unchanged thread.
 */
#define VISIT_WORK 2

/*
 * A separate function: if it is inlined, the compiler keeps the two return values in a form in
 * which the verifier does not see that they are 0 and 1.
 */
static __noinline void visit(struct pass_value *pass, struct task_struct *task)
{
	struct process_value *process;
	__u32 pid = task->tgid, tid = task->pid;

	if (pass->leaders_only && tid != pid)
		return;
	process = watched(pid);
	if (!process && tid == pid)
		see_stranger(pass, task);
	if (!process || pass->is_incomplete)
		return;
	if (process->pass_id != pass->id)
		begin_process(process, pass, task, pid, pass->id);
	if (is_whole(process, pass) || is_lead(process, pid, tid))
		sample_task(pass, process, task);
}

SEC("iter/task")
int sample_threads(struct bpf_iter__task *ctx)
{
	struct pass_value *pass = current_pass();
	struct task_struct *task = ctx->task;

	if (!pass || !task)
		return 0;
	if (ctx->meta->seq_num == 0)
		begin_pass(pass, true);
	if (!has_time(pass, VISIT_WORK)) {
		pass->work = 0;
		return RETURN_TO_USER_SPACE;
	}
	visit(pass, task);
	return 0;
}
