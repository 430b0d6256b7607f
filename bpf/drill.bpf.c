// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A drill that disconnects the containers of one pod: drops every packet of their sockets except
 * those that stay within the pod. Only the drill process has the links of these programs, so the
 * kernel detaches them when that process exits for any reason.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define LOOPBACK 1 /* include/net/flow.h: LOOPBACK_IFINDEX, in every network namespace */

/*
 * Called by __cgroup_bpf_run_filter_skb (kernel/bpf/cgroup.c) for each packet that a socket
 * sends,
 */
SEC("cgroup_skb/egress")
int drop_sent(struct __sk_buff *packet)
{
	return packet->ifindex == LOOPBACK;
}

/* and for each packet that it would receive. */
SEC("cgroup_skb/ingress")
int drop_received(struct __sk_buff *packet)
{
	return packet->ifindex == LOOPBACK;
}
