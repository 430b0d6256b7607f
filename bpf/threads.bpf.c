// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The base layer: one walk over all threads of the machine by the task iterator that every kernel
 * since 5.8 has. It costs nothing between two passes. walk.bpf.c does the same for half the price
 * where the kernel can.
 */
#include "sample.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

SEC("iter/task")
int sample_threads(struct bpf_iter__task *ctx)
{
	struct pass_value *pass = current_pass();
	struct task_struct *task = ctx->task;
	struct process_value *process;
	__u32 pid;

	if (!pass || !task)
		return 0;
	if (ctx->meta->seq_num == 0)
		begin_pass(pass);
	pid = task->tgid;
	process = watched(pid);
	if (!process || pass->is_incomplete)
		return 0;
	if (process->pass_id != pass->id)
		begin_process(process, pass, task, pid);
	look(pass, process, task);
	return 0;
}
