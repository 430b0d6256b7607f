/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Records from the kernel half to user space: the one header both sides share.
 *
 * Records (`*_event`) travel through the ring buffer or an iterator's file; values (`*_value`) live
 * in maps that user space reads or writes. kcover_ebpf/kernel/records/wire.py mirrors every one of
 * them; a test compares the two through BTF. All fields have a fixed width, padding is explicit,
 * and every byte is written. `pid` is the process (the kernel's tgid), `tid` the thread; `*_ns` is
 * CLOCK_BOOTTIME unless the name says otherwise.
 */
#ifndef KCOVER_EVENTS_H
#define KCOVER_EVENTS_H

#include <linux/types.h>

#define COMM_BYTES        16
#define ADDRESS_BYTES     16
#define SYSCALL_ARG_COUNT 6
#define NO_SYSCALL        (-1)

enum event_type {
	EVENT_THREAD = 1,
	EVENT_TOTALS = 2,
	EVENT_SOCKET = 3,
	EVENT_DESCRIPTOR = 4,
	EVENT_FORK = 5,
	EVENT_EXEC = 6,
	EVENT_EXIT = 7,
	EVENT_OOM = 8,
	EVENT_SIGNAL = 9,
	EVENT_RETRANSMIT = 10,
	EVENT_TCP_STATE = 11,
	EVENT_FATAL = 12,
};

/* The letters of facts.TaskState. */
enum thread_state {
	THREAD_RUNNING = 'R',
	THREAD_SLEEPING = 'S',
	THREAD_UNINTERRUPTIBLE = 'D',
	THREAD_STOPPED = 'T',
	THREAD_TRACED = 't',
	THREAD_FROZEN = 'F',
	THREAD_ZOMBIE = 'Z',
	THREAD_OTHER = '?',
};

enum descriptor_kind {
	DESCRIPTOR_PIPE = 1,
	DESCRIPTOR_FIFO = 2,
	DESCRIPTOR_UNIX = 3,
};

struct event_header {
	__u16 type; /* enum event_type */
	__u16 size; /* size of the whole record */
	__u32 pid;
	__u64 boottime_ns;
};

struct thread_event {
	struct event_header header;
	__u64 start_ns;
	__u64 args[SYSCALL_ARG_COUNT];
	__u64 user_sp;
	__u64 user_ip;
	__u64 site_since_ns;
	__u64 idle_since_ns;
	__u64 previous_ns; /* the previous visit; 0: none */
	__u64 cpu_ns;
	__u64 run_delay_ns;
	__u64 voluntary_count;
	__u64 minor_faults;
	__u64 call_chars; /* bytes through its read and write calls */
	__u32 tid;
	__s32 syscall;
	__u32 state; /* enum thread_state */
	__u32 pad;
	__u8 comm[COMM_BYTES];
};

struct totals_event {
	struct event_header header;
	__u64 cpu_ns;
	__u64 read_bytes;
	__u64 write_bytes;
	__u64 read_chars;
	__u64 write_chars;
	__u64 major_faults;
	__u64 asleep_bytes; /* of read_bytes and write_bytes: by threads asleep before or after */
	__u64 asleep_chars; /* the same of read_chars and write_chars */
	__u64 throttled_ns; /* by CPU quotas of its control groups, over their lifetime */
	__u32 ppid;
	__u32 thread_count;
	__u32 unseen_count;   /* threads without room in this pass; the sums lack them */
	__u32 forsaken_count; /* threads that sleep forever at a futex of their own process */
};

/* IPv4 addresses are stored as IPv6-mapped ones in network order; ports are in host order. */
struct tcp_endpoints {
	__u8 local[ADDRESS_BYTES];
	__u8 remote[ADDRESS_BYTES];
	__u16 local_port;
	__u16 remote_port;
	__u32 pad;
};

struct socket_event {
	struct event_header header;
	struct tcp_endpoints ends;
	__u64 inode;
	__u64 acked_bytes; /* acknowledged by the peer, the SYN included */
	__u64 received_bytes;
	__u64 last_send_ns;
	__u64 last_receive_ns;
	__u32 fd;
	__u32 state;
	__u32 unread_bytes;
	__u32 unsent_bytes;
	__u32 unacked_bytes;
	__u32 send_window_bytes;
	__u32 backoff;
	__u32 pad;
};

struct descriptor_event {
	struct event_header header;
	__u64 inode;
	__u64 peer_inode; /* 0: none */
	__u64 drain_mark; /* changes when the other end reads */
	__u32 fd;
	__u32 kind; /* enum descriptor_kind */
};

struct fork_event {
	struct event_header header;
	__u32 child_pid;
	__u32 pad;
	__u8 comm[COMM_BYTES];
};

struct exec_event {
	struct event_header header;
	__u8 comm[COMM_BYTES];
};

struct exit_event {
	struct event_header header;
	__u32 wait_status; /* as waitpid(2) reports it */
	__u32 pad;
	__u8 comm[COMM_BYTES];
};

struct oom_event {
	struct event_header header;
	__u8 comm[COMM_BYTES];
};

struct signal_event {
	struct event_header header;
	__u32 tid;
	__u32 signal;
	__u32 sender_pid;   /* 0: the kernel itself */
	__u32 from_outside; /* 1: sent from outside the target's pid namespace; 0 also if unknown */
	__u8 sender_comm[COMM_BYTES];
};

struct fatal_event {
	struct event_header header;
	__u32 signal; /* that ends the process */
	__u32 pad;
	__u8 comm[COMM_BYTES];
};

struct retransmit_event {
	struct event_header header;
	struct tcp_endpoints ends;
};

struct tcp_state_event {
	struct event_header header;
};

/* One watched process; the existence of the entry makes it watched. */
struct process_value {
	struct totals_event totals;
	__u64 watched_ns;      /* threads that started before count from their first sample */
	__u64 pass_id;         /* the last pass that visited it */
	__u64 whole_id;        /* the last pass that visited all its threads */
	__u64 reported_id;     /* the pass that has finished it */
	__u64 socket_pass_id;  /* the iteration that first saw its descriptors, and sends all */
	__u32 detail;          /* enum detail of maps.bpf.h */
	__u32 begins;          /* the detail is new: this pass also sends unchanged state */
	__u32 lead_tid;        /* visited in every pass, like its first thread; 0: none */
	__u32 next_tid;        /* where the walk over its threads stopped; 0: it did not */
	__u32 unseen_reported; /* threads without room that were counted as lost */
	__u32 socket_refused;  /* one of its sockets had no room; counted as lost once */
	__u64 owner_id;        /* owner of its share, inherited; 0: its control group */
	__u32 ending_signal;   /* delivered signal that ends it; 0: none */
	__u32 end_pad;
};

/*
 * How closely user space wants a process sampled; a process without an entry is sampled as in
 * calm times.
 */
struct detail_value {
	__u32 detail; /* enum detail of maps.bpf.h */
	__u32 every;  /* all its threads are visited in every Nth pass */
	__u32 lead_tid;
	__u32 pad;
};

/* The current pass (or the last one), described when its first thread is visited. */
struct pass_value {
	__u64 id;
	__u64 used_bytes;    /* in the buffer `samples` */
	__u64 is_incomplete; /* not all threads were sampled: read the samples and continue */
	__u64 boottime_ns;
	__u64 previous_ns;  /* boottime of the previous pass; 0 before the second */
	__u64 monotonic_ns; /* CLOCK_MONOTONIC, which leaves out suspension */
	__u64 sched_ns;     /* the scheduler's clock at the same moment */
	__u64 jiffies;
	__u64 work;          /* work of the current call, in visits to unchanged threads */
	__u64 turns;         /* threads of one process that the current call has passed */
	__u64 process_count; /* watched processes that this pass visited, and the sum of their pids
			      */
	__u64 pid_sum;
	__u64 stranger_count; /* processes not watched, in groups of watched ones; sum of pids */
	__u64 stranger_sum;
	__u64 is_continued; /* the previous call was incomplete */
	__u64 leaders_only; /* no process is due: other threads are skipped */
	/* Written by user space between two passes: */
	__u64 tick_ns;     /* length of a jiffy */
	__u64 is_whole;    /* every process is due in the next pass */
	__u64 least_every; /* the smallest `every` of all processes; 0: unknown */
};

/* Records and samples that did not fit, since the start. */
struct lost_value {
	__u64 ring_count;
	__u64 process_count;
	__u64 thread_count;
	__u64 socket_count;
	__u64 message_count; /* dropped to leave room for exits and faults; affects no verdict */
};

#endif
