// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * A drill cuts the containers of one pod off: every packet of their sockets is dropped but those
 * that stay within the pod. Only the drill has the links of these programs, so the kernel lets
 * everything through again when that process is gone, however it ended.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define LOOPBACK 1 /* include/net/flow.h: LOOPBACK_IFINDEX, in every network namespace */

/* Asked by __cgroup_bpf_run_filter_skb (kernel/bpf/cgroup.c) for each packet that a socket sends,
 */
SEC("cgroup_skb/egress")
int drop_sent(struct __sk_buff *packet)
{
	return packet->ifindex == LOOPBACK;
}

/* and for each that it would receive. */
SEC("cgroup_skb/ingress")
int drop_received(struct __sk_buff *packet)
{
	return packet->ifindex == LOOPBACK;
}
