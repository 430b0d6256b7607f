/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ends of a TCP connection, in the same form for IPv4 and IPv6. */
#ifndef KCOVER_TCP_BPF_H
#define KCOVER_TCP_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "maps.bpf.h"

#define AF_UNIX     1
#define AF_INET     2
#define AF_INET6    10
#define IPPROTO_TCP 6
#define SOCK_STREAM 1

/* include/net/tcp_states.h */
#define TCP_SYN_SENT 2
#define TCP_CLOSE    7
#define TCP_LISTEN   10

static __always_inline void map_ipv4(__u8 *address, __u32 ipv4)
{
	__builtin_memset(address, 0, ADDRESS_BYTES - 6);
	address[10] = 0xff;
	address[11] = 0xff;
	__builtin_memcpy(address + 12, &ipv4, sizeof(ipv4));
}

static __always_inline void read_endpoints(struct tcp_endpoints *ends, struct sock *sk)
{
	ends->local_port = BPF_CORE_READ(sk, __sk_common.skc_num);
	ends->remote_port = bpf_ntohs(BPF_CORE_READ(sk, __sk_common.skc_dport));
	ends->pad = 0;
	if (BPF_CORE_READ(sk, __sk_common.skc_family) == AF_INET) {
		map_ipv4(ends->local, BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr));
		map_ipv4(ends->remote, BPF_CORE_READ(sk, __sk_common.skc_daddr));
		return;
	}
	bpf_core_read(ends->local, ADDRESS_BYTES, &sk->__sk_common.skc_v6_rcv_saddr);
	bpf_core_read(ends->remote, ADDRESS_BYTES, &sk->__sk_common.skc_v6_daddr);
}

static __always_inline bool is_tcp(struct sock *sk)
{
	__u16 family = BPF_CORE_READ(sk, __sk_common.skc_family);

	return (family == AF_INET || family == AF_INET6) &&
	       BPF_CORE_READ(sk, sk_type) == SOCK_STREAM &&
	       BPF_CORE_READ(sk, sk_protocol) == IPPROTO_TCP;
}

/* Inode of the socket's file, as in /proc/PID/fd; 0 if no file holds it any more. */
static __always_inline __u64 socket_inode(struct sock *sk)
{
	struct socket_alloc *alloc = (void *)BPF_CORE_READ(sk, sk_socket);

	return alloc ? BPF_CORE_READ(alloc, vfs_inode.i_ino) : 0;
}

#endif
