/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * One visit to one thread: compares it with its previous sample, derives since when it has been
 * in its state, adds its activity to its process, and writes a record if it moved. Both kinds of
 * walk use this.
 */
#ifndef KCOVER_SAMPLE_BPF_H
#define KCOVER_SAMPLE_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "account.bpf.h"
#include "compat.bpf.h"
#include "pass.bpf.h"

/*
 * A thread has moved if it used more than this fraction of CPU since the last visit. Less than
 * the floor never counts, so that a wake-up does not count as more if two passes follow closely
 * (after an event).
 */
#define MOVED_CPU_PART     50
#define MOVED_CPU_FLOOR_NS 1000000

/* include/uapi/linux/futex.h */
#define FUTEX_PRIVATE_FLAG 128
/* A futex this close to the end of a thread's stack is in the thread's own frame. */
#define FRAME_BYTES 4096

struct site {
	__u64 user_sp;
	__u64 arg0;
	__s32 syscall;
};

/*
 * The call that a thread is in. If it runs, it may have left the call: then the registers are
 * stale.
 */
static __always_inline void read_site(struct site *site, struct task_struct *task,
				      struct pt_regs *regs, __u32 state)
{
	site->syscall = REGS_SYSCALL(regs);
	if (site->syscall >= 0 && is_32_bit_call(task))
		site->syscall += FOREIGN_SYSCALLS;
	site->user_sp = REGS_SP(regs);
	if (site->syscall < 0 || (state == THREAD_RUNNING && REGS_CALL_IS_OVER(regs))) {
		site->syscall = NO_SYSCALL;
		site->arg0 = 0;
		return;
	}
	site->arg0 = REGS_ARG0(regs);
}

/*
 * A timed wait that was interrupted by a stop, a freezer or a debugger continues under another
 * call number (kernel/signal.c, sys_restart_syscall()) with unchanged arguments. On some machines
 * it is in no call while it is stopped, and makes the same call again afterwards. It counts as
 * the same wait.
 */
static __always_inline void see_through_restart(struct site *site, struct thread_sample *sample)
{
	bool restarted = site->syscall == RESTART_SYSCALL && site->arg0 == sample->arg0;
	bool forgotten = REGS_STOP_FORGETS_CALL && site->syscall == NO_SYSCALL &&
			 (sample->state == THREAD_STOPPED || sample->state == THREAD_TRACED ||
			  sample->state == THREAD_FROZEN);

	if ((restarted || forgotten) && site->user_sp == sample->user_sp) {
		site->syscall = sample->syscall;
		site->arg0 = sample->arg0;
	}
}

/* When a thread that is not running got its last CPU, on the clock of the pass. */
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

static __always_inline void fill_event(struct thread_event *event, struct task_struct *task,
				       struct pt_regs *regs, struct site *site)
{
	event->tid = task->pid;
	event->pad = 0;
	event->start_ns = task->start_boottime;
	event->cpu_ns = task->se.sum_exec_runtime;
	event->run_delay_ns = 0;
	if (bpf_core_field_exists(task->sched_info.run_delay))
		event->run_delay_ns = task->sched_info.run_delay;
	event->voluntary_count = task->nvcsw;
	event->minor_faults = task->min_flt;
	event->call_chars = 0;
	if (bpf_core_field_exists(task->ioac.rchar))
		event->call_chars = task->ioac.rchar + task->ioac.wchar;
	copy_comm(event->comm, task);
	event->syscall = site->syscall;
	event->user_sp = site->user_sp;
	event->user_ip = REGS_IP(regs);
	/* Outside a call these are ordinary registers: they distinguish a loop from work. */
	event->args[0] = REGS_ARG0(regs);
	event->args[1] = REGS_ARG1(regs);
	event->args[2] = REGS_ARG2(regs);
	event->args[3] = REGS_ARG3(regs);
	event->args[4] = REGS_ARG4(regs);
	event->args[5] = REGS_ARG5(regs);
}

static __always_inline bool send_thread(struct pass_value *pass, struct task_struct *task,
					struct pt_regs *regs, struct site *site,
					struct thread_sample *sample)
{
	struct thread_event *event = append(pass, sizeof(*event));

	if (!event)
		return false;
	fill_header(&event->header, EVENT_THREAD, sizeof(*event), task->tgid, pass->boottime_ns);
	event->state = sample->state;
	event->site_since_ns = sample->site_since_ns;
	event->previous_ns = sample->sampled_ns;
	event->idle_since_ns = idle_since(pass, task, sample->state);
	/*
	 * A thread that was switched since its last sample ran after that sample, whatever the
	 * clocks show.
	 */
	if (sample->switch_count != task->nvcsw + task->nivcsw &&
	    event->idle_since_ns < sample->sampled_ns)
		event->idle_since_ns = sample->sampled_ns;
	fill_event(event, task, regs, site);
	return true;
}

/* It sleeps without a time-out at a futex that no other process can reach. */
static __always_inline bool is_forsaken(struct site *site, struct pt_regs *regs, __u32 state)
{
	return state == THREAD_SLEEPING && site->syscall == FUTEX_SYSCALL &&
	       REGS_ARG1(regs) & FUTEX_PRIVATE_FLAG && !REGS_ARG3(regs);
}

static __always_inline void mark(struct thread_sample *sample, struct pass_value *pass)
{
	sample->pass_id = pass->id;
	sample->sampled_ns = pass->boottime_ns;
}

static __always_inline void remember(struct thread_sample *sample, struct pass_value *pass,
				     struct task_struct *task, struct pt_regs *regs,
				     struct site *site)
{
	mark(sample, pass);
	sample->is_forsaken = is_forsaken(site, regs, sample->state);
	sample->start_ns = task->start_boottime;
	sample->switch_count = task->nvcsw + task->nivcsw;
	sample->user_sp = site->user_sp;
	sample->arg0 = site->arg0;
	sample->syscall = site->syscall;
}

/*
 * It waits at a futex in a frame of its own stack, as CUDA's host threads do until a device is
 * done.
 */
static __always_inline bool waits_in_frame(struct site *site)
{
	return site->syscall == FUTEX_SYSCALL && site->arg0 - site->user_sp < FRAME_BYTES;
}

/*
 * Lead threads, threads that do not sleep, and those that may wait for a device. Of other
 * sleeping threads only the state is recorded.
 */
static __always_inline bool is_judged(struct process_value *process, struct task_struct *task,
				      struct site *site, __u32 state)
{
	return state != THREAD_SLEEPING || is_lead(process, task->tgid, task->pid) ||
	       process->detail == DETAIL_ALL || waits_in_frame(site);
}

/*
 * A thread without a sample: it is new, or its process has just been added. One that is exiting
 * was already accounted by sched_process_exit.
 */
static __always_inline void first_sample(struct pass_value *pass, struct process_value *process,
					 struct task_struct *task)
{
	struct pt_regs *regs = user_registers(task);
	struct thread_sample sample = {};
	__u32 tid = task->pid;
	struct site site;
	bool news;

	if (task->flags & PF_EXITING)
		return;
	sample.raw_state = raw_state(task);
	sample.state = thread_state(task, sample.raw_state);
	sample.site_since_ns = idle_since(pass, task, sample.state);
	read_site(&site, task, regs, sample.state);
	news = is_judged(process, task, &site, sample.state);
	if (news && !send_thread(pass, task, regs, &site, &sample))
		return;
	remember(&sample, pass, task, regs, &site);
	if (sample.start_ns < process->watched_ns)
		set_baseline(&sample, task);
	else
		account(&process->totals, &sample, task);
	if (IS_SHARE_FULL(process, task, thread, THREADS) ||
	    bpf_map_update_elem(&threads, &tid, &sample, BPF_ANY)) {
		/* Later in this pass it would pass for a new one, and must not be sent again. */
		count_unseen(process, pass);
		if (news)
			pass->used_bytes -= sizeof(struct thread_event);
		return;
	}
	count_thread(process, pass, &sample);
}

static __always_inline bool has_moved(struct thread_sample *sample, struct pass_value *pass,
				      struct task_struct *task, struct site *site)
{
	__u64 used_ns = task->se.sum_exec_runtime - sample->cpu_ns;

	if (site->syscall != sample->syscall || site->arg0 != sample->arg0 ||
	    site->user_sp != sample->user_sp)
		return true;
	return used_ns > MOVED_CPU_FLOOR_NS &&
	       used_ns * MOVED_CPU_PART > pass->boottime_ns - sample->sampled_ns;
}

static __always_inline bool is_asleep(__u32 state, __s32 syscall)
{
	return state == THREAD_SLEEPING && IS_SLEEP(syscall);
}

/*
 * `before`: its state at the last sample. What it moved before or after a sleep is summed
 * separately as well: it paces itself, or has failed and tries again.
 */
static __always_inline void account_sample(struct process_value *process,
					   struct thread_sample *sample, struct task_struct *task,
					   struct site *site, __u32 before)
{
	__u64 bytes = sample->read_bytes + sample->write_bytes;
	__u64 chars = sample->read_chars + sample->write_chars;

	account(&process->totals, sample, task);
	if (!is_asleep(before, sample->syscall) && !is_asleep(sample->state, site->syscall))
		return;
	bytes = sample->read_bytes + sample->write_bytes - bytes;
	chars = sample->read_chars + sample->write_chars - chars;
	__sync_fetch_and_add(&process->totals.asleep_bytes, bytes);
	__sync_fetch_and_add(&process->totals.asleep_chars, chars);
}

static __always_inline void next_sample(struct pass_value *pass, struct process_value *process,
					struct task_struct *task, struct thread_sample *sample)
{
	struct pt_regs *regs = user_registers(task);
	__u64 site_since_ns = sample->site_since_ns;
	__u32 raw = raw_state(task), before = sample->state;
	struct site site;
	bool moved, news;

	sample->state = thread_state(task, raw);
	read_site(&site, task, regs, sample->state);
	see_through_restart(&site, sample);
	moved = has_moved(sample, pass, task, &site);
	if (moved)
		sample->site_since_ns = pass->boottime_ns;
	/*
	 * Sent once more when it comes to rest, so that user space knows that it no longer uses a
	 * CPU.
	 */
	news = moved || sample->moved || sample->state != before ||
	       (process->detail && is_judged(process, task, &site, sample->state));
	if (news && !send_thread(pass, task, regs, &site, sample)) {
		sample->state = before;
		sample->site_since_ns = site_since_ns;
		return;
	}
	sample->raw_state = raw;
	sample->moved = moved;
	account_sample(process, sample, task, &site, before);
	remember(sample, pass, task, regs, &site);
	count_thread(process, pass, sample);
}

/*
 * The fast path, for nearly all threads in nearly all passes. It reads as little of the task as
 * possible, because each line of memory is a cache miss. A thread that sleeps in the same state
 * with the same number of switches has not run, so nothing else of it can have changed.
 */
static __always_inline bool is_unchanged(struct thread_sample *sample, struct task_struct *task)
{
	return sample->switch_count == task->nvcsw + task->nivcsw &&
	       sample->start_ns == task->start_boottime && sample->raw_state == raw_state(task) &&
	       (sample->raw_state || sample->cpu_ns == task->se.sum_exec_runtime);
}

/* Handles a thread that was already visited in this pass, or that has not run. */
static __always_inline bool quick_sample(struct pass_value *pass, struct process_value *process,
					 struct task_struct *task, struct thread_sample *sample)
{
	struct site site = { .user_sp = sample->user_sp,
			     .arg0 = sample->arg0,
			     .syscall = sample->syscall };

	if (sample->pass_id == pass->id)
		return true;
	if (sample->moved || !is_unchanged(sample, task))
		return false;
	if (process->begins && is_judged(process, task, &site, sample->state))
		return false;
	/*
	 * Runnable, but without a CPU since the last visit: in detail mode that is reported each
	 * time.
	 */
	if (process->detail && !sample->raw_state)
		return false;
	mark(sample, pass);
	count_thread(process, pass, sample);
	return true;
}

static __always_inline struct thread_sample *sample_of(__u32 tid)
{
	return bpf_map_lookup_elem(&threads, &tid);
}

static __always_inline void sample_task(struct pass_value *pass, struct process_value *process,
					struct task_struct *task)
{
	struct thread_sample *sample = sample_of(task->pid);

	if (!sample) {
		pass->work += LONGER_WORK;
		first_sample(pass, process, task);
		return;
	}
	if (quick_sample(pass, process, task, sample))
		return;
	pass->work += LONGER_WORK;
	if (sample->start_ns != task->start_boottime)
		first_sample(pass, process, task);
	else
		next_sample(pass, process, task, sample);
}

#endif
