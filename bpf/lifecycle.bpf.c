// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Announced faults and the process tree: exit, fork, exec, the out-of-memory killer, signals. All
 * are rare. A child of a watched process is added here before it runs its first instruction.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "account.bpf.h"
#include "compat.bpf.h"
#include "emit.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* include/linux/sched/signal.h */
#define SIGNAL_GROUP_EXIT 0x00000004
#define SIGNAL_UNKILLABLE 0x00000040
/* include/linux/sched/signal.h: SEND_SIG_NOINFO means the caller, SEND_SIG_PRIV the kernel
 */
#define SEND_SIG_NOINFO 0UL
#define SEND_SIG_PRIV   1UL
/*
 * include/uapi/asm-generic/siginfo.h: signals of the kernel's timers look like those of user
 * space
 */
#define SI_TIMER (-2)
/* include/trace/events/signal.h */
#define TRACE_SIGNAL_DELIVERED 0
/* include/uapi/asm-generic/signal.h */
#define SIGHUP  1
#define SIGINT  2
#define SIGQUIT 3
#define SIGILL  4
#define SIGTRAP 5
#define SIGABRT 6
#define SIGBUS  7
#define SIGFPE  8
#define SIGKILL 9
#define SIGSEGV 11
#define SIGTERM 15
#define SIGCONT 18
#define SIGSTOP 19
#define SIGTSTP 20
#define SIGTTIN 21
#define SIGTTOU 22
#define SIGXCPU 24
#define SIGXFSZ 25
#define SIGSYS  31
#define BIT(n)  (1U << (n))
/* Signals that stop, continue or, by default, end a process, and are not used as messages. */
#define REPORTED_SIGNALS                                                                           \
	(BIT(SIGHUP) | BIT(SIGINT) | BIT(SIGQUIT) | BIT(SIGILL) | BIT(SIGTRAP) | BIT(SIGABRT) |    \
	 BIT(SIGBUS) | BIT(SIGFPE) | BIT(SIGKILL) | BIT(SIGSEGV) | BIT(SIGTERM) | BIT(SIGCONT) |   \
	 BIT(SIGSTOP) | BIT(SIGTSTP) | BIT(SIGTTIN) | BIT(SIGTTOU) | BIT(SIGXCPU) | BIT(SIGXFSZ) | \
	 BIT(SIGSYS))
/* Signals that the processor raises in the thread that caused them. */
#define FAULT_SIGNALS (BIT(SIGILL) | BIT(SIGTRAP) | BIT(SIGBUS) | BIT(SIGFPE) | BIT(SIGSEGV))
/* include/linux/signal.h, SIG_KERNEL_COREDUMP_MASK: those whose default action writes a core */
#define CORE_SIGNALS                                                                            \
	(BIT(SIGQUIT) | BIT(SIGILL) | BIT(SIGTRAP) | BIT(SIGABRT) | BIT(SIGBUS) | BIT(SIGFPE) | \
	 BIT(SIGSEGV) | BIT(SIGXCPU) | BIT(SIGXFSZ) | BIT(SIGSYS))
/* include/uapi/asm-generic/signal-defs.h: 0 is the default action */
#define SIG_DFL ((void *)0)
#define SIG_IGN ((void *)1)

/* Exits that did not fit into the ring buffer, for the reader to take at its next pass. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* pid */
	__type(value, struct exit_event);
} unsent_exits SEC(".maps");

/* include/trace/events/sched.h, called by kernel_clone() in kernel/fork.c for threads as well */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	struct process_value process = {}, *maker;
	struct fork_event *event;
	__u32 pid = parent->tgid, child_pid = child->tgid;

	if (child->pid != child->tgid)
		return 0;
	maker = watched(pid);
	if (!maker)
		return 0;
	process.watched_ns = child->start_boottime;
	process.owner_id = maker->owner_id;
	bpf_map_delete_elem(&unsent_exits, &child_pid);
	if (IS_SHARE_FULL(&process, parent, process, PROCESSES) ||
	    bpf_map_update_elem(&processes, &child_pid, &process, BPF_ANY))
		COUNT_LOST(process_count);
	event = reserve_frequent(EVENT_FORK, sizeof(*event), pid);
	if (!event)
		return 0;
	event->child_pid = child_pid;
	event->pad = 0;
	copy_comm(event->comm, child);
	send_event(event);
	return 0;
}

/*
 * include/trace/events/sched.h, called by exec_binprm() in fs/exec.c once the exec succeeded. If
 * another thread than the first calls exec, it takes over the pid, and its own tid is freed.
 */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task, int old_tid)
{
	struct exec_event *event;
	__u32 pid = task->tgid, tid = old_tid;

	if (!watched(pid))
		return 0;
	if (tid != pid)
		bpf_map_delete_elem(&threads, &tid);
	event = reserve_frequent(EVENT_EXEC, sizeof(*event), pid);
	if (!event)
		return 0;
	copy_comm(event->comm, task);
	send_event(event);
	return 0;
}

/*
 * The final accounting of a thread. The entry of a leader stays, because it may be visited as a
 * zombie while other threads live.
 */
static __always_inline void end_thread(struct process_value *process, struct task_struct *task)
{
	__u32 tid = task->pid;
	struct thread_sample *known = bpf_map_lookup_elem(&threads, &tid);
	struct thread_sample fresh = {};

	if (known)
		account(&process->totals, known, task);
	else if (task->start_boottime >= process->watched_ns)
		account(&process->totals, &fresh, task);
	if (task->pid != task->tgid)
		bpf_map_delete_elem(&threads, &tid);
}

/* Like wait_task_zombie() in kernel/exit.c. */
static __always_inline __u32 wait_status(struct task_struct *leader)
{
	if (leader->signal->flags & SIGNAL_GROUP_EXIT)
		return leader->signal->group_exit_code;
	return leader->exit_code;
}

static __always_inline void describe_exit(struct exit_event *event, struct task_struct *leader)
{
	event->wait_status = wait_status(leader);
	event->pad = 0;
	copy_comm(event->comm, leader);
}

static __always_inline void keep_exit(__u32 pid, struct task_struct *leader)
{
	struct exit_event event;

	fill_header(&event.header, EVENT_EXIT, sizeof(event), pid, bpf_ktime_get_boot_ns());
	describe_exit(&event, leader);
	bpf_map_update_elem(&unsent_exits, &pid, &event, BPF_ANY);
}

/*
 * include/trace/events/sched.h, called by do_exit() in kernel/exit.c after `live` was
 * decremented. The last two threads may both read zero: the one that deletes the entry reports
 * the exit.
 */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	struct task_struct *leader = task->group_leader;
	struct process_value *process;
	struct exit_event *event;
	__u32 pid = task->tgid;

	process = watched(pid);
	if (!process)
		return 0;
	end_thread(process, task);
	if (task->signal->live.counter || bpf_map_delete_elem(&processes, &pid))
		return 0;
	bpf_map_delete_elem(&threads, &pid);
	bpf_map_delete_elem(&details, &pid);
	event = reserve_event(EVENT_EXIT, sizeof(*event), pid);
	if (!event) {
		keep_exit(pid, leader);
		return 0;
	}
	describe_exit(event, leader);
	send_event(event);
	return 0;
}

static __always_inline void emit_oom(__u32 pid, struct task_struct *task)
{
	struct oom_event *event;

	if (!watched(pid))
		return;
	event = reserve_event(EVENT_OOM, sizeof(*event), pid);
	if (!event)
		return;
	if (task)
		copy_comm(event->comm, task);
	else
		__builtin_memset(event->comm, 0, sizeof(event->comm));
	send_event(event);
}

/*
 * include/trace/events/oom.h, called by mark_oom_victim() in mm/oom_kill.c. The victim may be any
 * thread. Older kernels pass only its tid, which equals the pid for the usual single-threaded
 * victim.
 */
SEC("tp_btf/mark_victim")
int on_oom(__u64 *ctx)
{
	struct task_struct *victim;

	if (!mark_victim_passes_task()) {
		emit_oom(ctx[0], NULL);
		return 0;
	}
	victim = (void *)ctx[0];
	emit_oom(victim->tgid, victim);
	return 0;
}

/* Signals of the kernel have a positive code, those of a process zero or a negative one. */
static __always_inline bool is_from_kernel(struct kernel_siginfo *info)
{
	unsigned long special = (unsigned long)info;
	int code;

	if (special == SEND_SIG_NOINFO || special == SEND_SIG_PRIV)
		return special == SEND_SIG_PRIV;
	code = BPF_CORE_READ(info, si_code);
	return code > 0 || code == SI_TIMER;
}

/*
 * A fault that the process raises and handles itself: language runtimes and sanitizers cause
 * thousands in normal operation. If the handler gives up, the signal is raised again without a
 * handler.
 */
static __always_inline bool is_handled_fault(int signal, struct task_struct *task)
{
	struct sighand_struct *hands = BPF_CORE_READ(task, sighand);
	struct k_sigaction *action = (void *)hands + bpf_core_field_offset(hands->action) +
				     (signal - 1) * bpf_core_type_size(struct k_sigaction);

	return FAULT_SIGNALS & BIT(signal) && BPF_CORE_READ(action, sa.sa_handler) > SIG_IGN;
}

/* The pid namespace of the task's future children, usually its own; NULL once it exits. */
static __always_inline void *pid_namespace(struct task_struct *task)
{
	return BPF_CORE_READ(task, nsproxy, pid_ns_for_children);
}

/* Whether the current task is in another container than the target of its signal. */
static __always_inline bool is_outside(struct task_struct *target)
{
	void *theirs = pid_namespace(target);
	void *own = pid_namespace((void *)bpf_get_current_task());

	return own && theirs && own != theirs;
}

/*
 * include/trace/events/signal.h, called by __send_signal_locked() in kernel/signal.c. A SIGCONT
 * without a handler is reported as ignored there, although it continues the process.
 */
SEC("tp_btf/signal_generate")
int BPF_PROG(on_signal, int signal, struct kernel_siginfo *info, struct task_struct *task,
	     int group, int result)
{
	struct signal_event *event;

	if (signal < 1 || signal > 31 || !(REPORTED_SIGNALS & BIT(signal)) || !watched(task->tgid))
		return 0;
	if (result != TRACE_SIGNAL_DELIVERED && signal != SIGCONT)
		return 0;
	if (is_from_kernel(info) && is_handled_fault(signal, task))
		return 0;
	event = reserve_frequent(EVENT_SIGNAL, sizeof(*event), task->tgid);
	if (!event)
		return 0;
	event->tid = task->pid;
	event->signal = signal;
	event->sender_pid = 0;
	event->from_outside = 0;
	__builtin_memset(event->sender_comm, 0, sizeof(event->sender_comm));
	if (!is_from_kernel(info)) {
		event->sender_pid = bpf_get_current_pid_tgid() >> 32;
		bpf_get_current_comm(event->sender_comm, sizeof(event->sender_comm));
		event->from_outside = is_outside(task);
	}
	send_event(event);
	return 0;
}

/*
 * The signal that ends the process of a thread to which one is being delivered, or 0. When the
 * whole group exits, each of its threads gets a SIGKILL, and the exit code of the group contains
 * the reason; a core dump precedes that. The first process of a pid namespace survives signals of
 * the others.
 */
static __always_inline __u32 ending_signal(int signal, struct k_sigaction *action,
					   struct task_struct *task)
{
	__u32 flags = BPF_CORE_READ(task, signal, flags);

	if (flags & SIGNAL_GROUP_EXIT)
		return BPF_CORE_READ(task, signal, group_exit_code) & 0x7f;
	if (signal < 1 || signal > 31 || !(CORE_SIGNALS & BIT(signal)) || flags & SIGNAL_UNKILLABLE)
		return 0;
	return action->sa.sa_handler == SIG_DFL ? signal : 0;
}

/*
 * include/trace/events/signal.h, called by get_signal() in kernel/signal.c before the signal
 * takes effect. That is long before the exit if a core is written or much memory is freed.
 */
SEC("tp_btf/signal_deliver")
int BPF_PROG(on_delivery, int signal, struct kernel_siginfo *info, struct k_sigaction *action)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	__u32 ending = ending_signal(signal, action, task);
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct process_value *process;
	struct fatal_event *event;

	if (!ending)
		return 0;
	process = watched(pid);
	if (!process || process->ending_signal)
		return 0;
	process->ending_signal = ending;
	event = reserve_frequent(EVENT_FATAL, sizeof(*event), pid);
	if (!event)
		return 0;
	event->signal = ending;
	event->pad = 0;
	copy_comm(event->comm, BPF_CORE_READ(task, group_leader));
	send_event(event);
	return 0;
}
