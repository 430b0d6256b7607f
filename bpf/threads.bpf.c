// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The sampler: one walk over all threads, which keeps the sample before in a map, does the "since
 * when" arithmetic here and sends only threads that moved. It costs nothing between two passes.
 *
 * The file of an iterator has room for some records; when it is full, the kernel calls the program
 * once more for the same thread after the reader made room. So a record is written first, and the
 * maps are changed only once it is in.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "account.bpf.h"
#include "compat.bpf.h"
#include "emit.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * More CPU than one part in so many of the time since the last pass is a move; less than the floor
 * never is, so that a wake-up between two passes in a row (after an event) stays what it is.
 */
#define MOVED_CPU_PART	   50
#define MOVED_CPU_FLOOR_NS 1000000

static __always_inline void begin_pass(struct pass_value *pass, __u64 id)
{
	pass->id = id;
	pass->previous_ns = pass->boottime_ns;
	pass->sched_ns = scheduler_clock();
	pass->boottime_ns = bpf_ktime_get_boot_ns();
	pass->monotonic_ns = bpf_ktime_get_ns();
	pass->jiffies = bpf_jiffies64();
}

static __always_inline void begin_process(struct process_value *process, struct pass_value *pass,
					  struct task_struct *task, __u32 pid)
{
	struct totals_event *totals = &process->totals;
	__u32 *detail = bpf_map_lookup_elem(&details, &pid);

	fill_header(&totals->header, EVENT_TOTALS, sizeof(*totals), pid, pass->boottime_ns);
	totals->ppid = task->real_parent->tgid;
	totals->thread_count = 0;
	totals->stopped_count = 0;
	totals->traced_count = 0;
	totals->frozen_count = 0;
	totals->uninterruptible_count = 0;
	totals->running_count = 0;
	process->detail = detail ? *detail : 0;
	process->pass_id = pass->id;
}

static __always_inline void count_state(struct totals_event *totals, __u32 state)
{
	if (state == THREAD_ZOMBIE)
		return;
	totals->thread_count++;
	if (state == THREAD_SLEEPING)
		return;
	if (state == THREAD_RUNNING)
		totals->running_count++;
	else if (state == THREAD_UNINTERRUPTIBLE)
		totals->uninterruptible_count++;
	else if (state == THREAD_STOPPED)
		totals->stopped_count++;
	else if (state == THREAD_TRACED)
		totals->traced_count++;
	else if (state == THREAD_FROZEN)
		totals->frozen_count++;
}

/* The call a thread sits in. One that runs may be past it: then the registers are left-overs. */
static __always_inline void read_site(struct thread_event *event, struct task_struct *task)
{
	struct pt_regs *regs = user_registers(task);
	__s32 syscall = REGS_SYSCALL(regs);

	event->user_sp = REGS_SP(regs);
	event->user_ip = REGS_IP(regs);
	event->syscall = syscall;
	if (syscall < 0 || (event->state == THREAD_RUNNING && REGS_CALL_IS_OVER(regs)))
		event->syscall = NO_SYSCALL;
	/* outside a call these are registers like others: they tell a loop from a computation */
	event->args[0] = REGS_ARG0(regs);
	event->args[1] = REGS_ARG1(regs);
	event->args[2] = REGS_ARG2(regs);
	event->args[3] = REGS_ARG3(regs);
	event->args[4] = REGS_ARG4(regs);
	event->args[5] = REGS_ARG5(regs);
}

/* When a thread that does not run got its last CPU, on the clock of the pass. */
static __always_inline __u64 idle_since(struct pass_value *pass, struct task_struct *task,
					__u32 state)
{
	__u64 arrival = 0;

	if (state == THREAD_RUNNING || !pass->sched_ns)
		return pass->boottime_ns;
	if (bpf_core_field_exists(task->sched_info.last_arrival))
		arrival = task->sched_info.last_arrival;
	if (arrival >= pass->sched_ns)
		return pass->boottime_ns;
	if (!arrival || pass->sched_ns - arrival > pass->boottime_ns)
		return task->start_boottime;
	return pass->boottime_ns - (pass->sched_ns - arrival);
}

static __always_inline void read_thread(struct thread_event *event, struct task_struct *task,
					struct pass_value *pass, __u32 pid)
{
	fill_header(&event->header, EVENT_THREAD, sizeof(*event), pid, pass->boottime_ns);
	event->tid = task->pid;
	event->start_ns = task->start_boottime;
	event->cpu_ns = task->se.sum_exec_runtime;
	event->run_delay_ns = 0;
	if (bpf_core_field_exists(task->sched_info.run_delay))
		event->run_delay_ns = task->sched_info.run_delay;
	event->voluntary_count = task->nvcsw;
	event->involuntary_count = task->nivcsw;
	event->idle_since_ns = idle_since(pass, task, event->state);
	event->pad = 0;
	copy_comm(event->comm, task);
	read_site(event, task);
}

static __always_inline bool has_moved(struct thread_event *event, struct thread_sample *sample,
				      struct pass_value *pass)
{
	__u64 used_ns = event->cpu_ns - sample->cpu_ns;

	if (event->syscall != sample->syscall || event->user_sp != sample->user_sp)
		return true;
	if (event->syscall != NO_SYSCALL && event->args[0] != sample->arg0)
		return true;
	return used_ns > MOVED_CPU_FLOOR_NS &&
	       used_ns * MOVED_CPU_PART > pass->boottime_ns - pass->previous_ns;
}

static __always_inline void remember(struct thread_sample *sample, struct thread_event *event)
{
	sample->start_ns = event->start_ns;
	sample->switch_count = event->voluntary_count + event->involuntary_count;
	sample->site_since_ns = event->site_since_ns;
	sample->user_sp = event->user_sp;
	sample->arg0 = event->args[0];
	sample->syscall = event->syscall;
	sample->state = event->state;
}

/* A thread without a sample: either it is new, or its process is watched only now. */
static __always_inline int first_sample(struct seq_file *seq, struct task_struct *task,
					struct process_value *process, struct pass_value *pass,
					struct thread_event *event)
{
	struct thread_sample sample = {};
	__u32 tid = event->tid;

	event->site_since_ns = event->idle_since_ns;
	if (bpf_seq_write(seq, event, sizeof(*event)))
		return 0;
	if (event->start_ns < process->watched_ns)
		set_baseline(&sample, task);
	else
		account(&process->totals, &sample, task);
	remember(&sample, event);
	sample.pass_id = pass->id;
	if (bpf_map_update_elem(&threads, &tid, &sample, BPF_ANY))
		COUNT_LOST(thread_count);
	count_state(&process->totals, event->state);
	return 0;
}

static __always_inline int next_sample(struct seq_file *seq, struct task_struct *task,
				       struct process_value *process, struct pass_value *pass,
				       struct thread_event *event, struct thread_sample *sample)
{
	bool moved = has_moved(event, sample, pass);

	event->site_since_ns = moved ? pass->boottime_ns : sample->site_since_ns;
	if (moved || event->state != sample->state || process->detail) {
		if (bpf_seq_write(seq, event, sizeof(*event)))
			return 0;
	}
	account(&process->totals, sample, task);
	if (moved)
		process->totals.moved_ns = pass->boottime_ns;
	remember(sample, event);
	sample->pass_id = pass->id;
	count_state(&process->totals, event->state);
	return 0;
}

static __always_inline bool is_unchanged(struct thread_sample *sample, struct task_struct *task,
					 __u32 state)
{
	return sample->switch_count == task->nvcsw + task->nivcsw &&
	       sample->cpu_ns == task->se.sum_exec_runtime && sample->state == state &&
	       sample->start_ns == task->start_boottime;
}

SEC("iter/task")
int sample_threads(struct bpf_iter__task *ctx)
{
	struct pass_value *pass = current_pass();
	struct task_struct *task = ctx->task;
	struct process_value *process;
	struct thread_sample *sample;
	struct thread_event event;
	__u32 pid, tid;

	if (!pass || !task)
		return 0;
	if (ctx->meta->seq_num == 0)
		begin_pass(pass, ctx->meta->session_id);
	pid = task->tgid;
	process = watched(pid);
	if (!process)
		return 0;
	if (process->pass_id != pass->id)
		begin_process(process, pass, task, pid);

	tid = task->pid;
	sample = bpf_map_lookup_elem(&threads, &tid);
	event.state = thread_state(task);
	if (sample && !process->detail && is_unchanged(sample, task, event.state)) {
		sample->pass_id = pass->id;
		count_state(&process->totals, event.state);
		return 0;
	}
	/* A thread that is on its way out was accounted by sched_process_exit. */
	if (!sample && task->flags & PF_EXITING)
		return 0;
	read_thread(&event, task, pass, pid);
	if (!sample || sample->start_ns != event.start_ns)
		return first_sample(ctx->meta->seq, task, process, pass, &event);
	return next_sample(ctx->meta->seq, task, process, pass, &event, sample);
}
