// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Events of TCP about connections of watched processes. Both tracepoints may run in the context
 * of any process, so the owner is the process in which the socket sampler found it, or that
 * connected it.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "account.bpf.h"
#include "emit.bpf.h"
#include "tcp.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * At most one retransmission is reported per socket in this time, which is the shortest regular
 * time-out.
 */
#define RETRANSMIT_PERIOD_NS 200000000ULL

static __always_inline struct socket_sample *known_socket(struct sock *sk)
{
	__u64 key = (__u64)sk;

	return bpf_map_lookup_elem(&sockets, &key);
}

/* include/trace/events/tcp.h, called by __tcp_retransmit_skb() in net/ipv4/tcp_output.c */
SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(on_retransmit, struct sock *sk)
{
	struct socket_sample *known = known_socket(sk);
	__u64 now_ns = bpf_ktime_get_boot_ns();
	struct retransmit_event *event;

	if (!known || now_ns - known->retransmit_ns < RETRANSMIT_PERIOD_NS)
		return 0;
	known->retransmit_ns = now_ns;
	event = reserve_message(EVENT_RETRANSMIT, sizeof(*event), known->pid);
	if (!event)
		return 0;
	read_endpoints(&event->ends, sk);
	leave_event(event);
	return 0;
}

/*
 * A connection opened by a watched process is known from its first packet on, an incoming one
 * from listen(2) on.
 */
static __always_inline struct socket_sample *connecting_socket(struct sock *sk)
{
	struct socket_sample sample = {}, *before = known_socket(sk);
	struct process_value *process;
	__u64 key = (__u64)sk;

	sample.pid = bpf_get_current_pid_tgid() >> 32;
	process = watched(sample.pid);
	if (!process)
		return NULL;
	sample.inode = socket_inode(sk);
	if (before)
		drop_socket(before);
	if (!take_socket(process, (void *)bpf_get_current_task(), &sample))
		return NULL;
	if (bpf_map_update_elem(&sockets, &key, &sample, BPF_ANY)) {
		drop_socket(&sample);
		COUNT_LOST(socket_count);
	}
	return known_socket(sk);
}

/* include/trace/events/sock.h, called by inet_sk_set_state() in net/ipv4/af_inet.c */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_tcp_state, struct sock *sk, int old_state, int new_state)
{
	struct socket_sample *known;
	struct tcp_state_event *event;
	__u64 key = (__u64)sk;

	if (BPF_CORE_READ(sk, sk_protocol) != IPPROTO_TCP)
		return 0;
	/* Only connect(2) and listen(2) cause these transitions, in the context of the caller. */
	if (old_state == TCP_CLOSE && (new_state == TCP_SYN_SENT || new_state == TCP_LISTEN))
		known = connecting_socket(sk);
	else
		known = known_socket(sk);
	if (!known)
		return 0;
	event = reserve_message(EVENT_TCP_STATE, sizeof(*event), known->pid);
	if (event)
		leave_event(event);
	if (new_state == TCP_CLOSE) {
		drop_socket(known);
		bpf_map_delete_elem(&sockets, &key);
	}
	return 0;
}
