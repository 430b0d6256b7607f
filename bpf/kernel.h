/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The kernel's own structures, reduced to the fields that are used. The loader relocates each
 * access to where the running kernel keeps the field (CO-RE), so neither order nor size matters,
 * and no generated header of 2.8 MB is needed. For differences between kernels see compat.bpf.h.
 */
#ifndef KCOVER_KERNEL_H
#define KCOVER_KERNEL_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

struct sched_info {
	unsigned long long run_delay;
	unsigned long long last_arrival;
};

struct sched_entity {
	__u64 sum_exec_runtime;
	__u64 prev_sum_exec_runtime;
};

struct sched_ext_entity {
	__u32 flags;
};

struct thread_info {
	unsigned long flags;
	__u32 status; /* x86 */
};

struct vm_struct {
	unsigned long size;
	unsigned int nr_pages;
};

struct sigaction {
	void *sa_handler;
};

struct k_sigaction {
	struct sigaction sa;
};

struct sighand_struct {
	struct k_sigaction action[64];
};

struct task_io_accounting {
	__u64 rchar;
	__u64 wchar;
	__u64 read_bytes;
	__u64 write_bytes;
};

struct signal_struct {
	atomic_t live;
	int group_exit_code;
	unsigned int flags;
};

struct nsproxy {
	void *pid_ns_for_children;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct cfs_bandwidth {
	__u64 throttled_time;
};

struct task_group {
	struct task_group *parent;
	struct cfs_bandwidth cfs_bandwidth;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	void *stack;
	struct vm_struct *stack_vm_area;
	unsigned int flags;
	struct sched_entity se;
	struct sched_ext_entity scx;
	unsigned int policy;
	struct sched_info sched_info;
	int exit_state;
	int exit_code;
	unsigned long jobctl;
	int pid;
	int tgid;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	unsigned long nvcsw;
	unsigned long nivcsw;
	__u64 start_boottime;
	unsigned long min_flt;
	unsigned long maj_flt;
	char comm[16];
	struct nsproxy *nsproxy;
	struct css_set *cgroups;
	struct task_group *sched_task_group;
	struct signal_struct *signal;
	struct sighand_struct *sighand;
	struct task_io_accounting ioac;
};

struct kernel_siginfo {
	int si_code;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 session_id;
	__u64 seq_num;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct super_block {
	unsigned long s_magic;
};

struct pipe_inode_info {
	unsigned int tail;
};

struct inode {
	unsigned short i_mode;
	struct pipe_inode_info *i_pipe;
	struct super_block *i_sb;
	unsigned long i_ino;
};

struct file {
	struct inode *f_inode;
	void *private_data;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
};

struct in6_addr {
	union {
		__u8 u6_addr8[16];
	} in6_u;
};

struct sock_common {
	__u32 skc_daddr;
	__u32 skc_rcv_saddr;
	__u16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	unsigned long skc_flags;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

typedef struct {
	atomic_t refs;
} refcount_t;

struct sk_buff {
	struct sk_buff *next;
	char cb[48];
};

struct sk_buff_head {
	struct sk_buff *next;
	__u32 qlen;
};

struct unix_skb_parms {
	__u32 consumed;
};

struct sock {
	struct sock_common __sk_common;
	struct sk_buff_head sk_receive_queue;
	refcount_t sk_wmem_alloc;
	__u16 sk_protocol;
	__u16 sk_type;
	struct socket *sk_socket;
};

struct socket {
	struct sock *sk;
};

struct socket_alloc {
	struct socket socket;
	struct inode vfs_inode;
};

struct unix_sock {
	struct sock *peer;
};

struct inet_connection_sock {
	__u8 icsk_retransmits;
	__u8 icsk_backoff;
	__u8 icsk_probes_out;
	struct {
		__u32 lrcvtime;
	} icsk_ack;
};

struct tcp_sock {
	__u32 rcv_nxt;
	__u32 copied_seq;
	__u32 snd_nxt;
	__u32 snd_una;
	__u32 snd_wnd;
	__u32 write_seq;
	__u32 lsndtime;
	__u64 bytes_acked;
	__u64 bytes_received;
};

#pragma clang attribute pop

#endif
