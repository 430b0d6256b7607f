// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Reports of network devices about themselves: RDMA port and device events, devlink health. */
#include "device_kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "devices.h"
#include "emit.bpf.h"
#include "kprobe.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

static __always_inline void clear_nic(struct nic_event *event, __u32 source)
{
	event->source = source;
	event->event = 0;
	event->port = 0;
	event->pad = 0;
	__builtin_memset(event->device, 0, sizeof(event->device));
	__builtin_memset(event->reporter, 0, sizeof(event->reporter));
	__builtin_memset(event->text, 0, sizeof(event->text));
}

/* ib_dispatch_event() in drivers/infiniband/core/cache.c, exported, called by every RDMA driver */
SEC("kprobe/ib_dispatch_event")
int on_rdma(struct pt_regs___kprobe *regs)
{
	struct ib_event *reported = KPROBE_ARG0(regs);
	__u32 type = BPF_CORE_READ(reported, event);
	struct nic_event *event;

	if (type < IB_EVENT_DEVICE_FATAL || type > IB_EVENT_PORT_ERR)
		return 0;
	event = reserve_event(EVENT_NIC, sizeof(*event), 0);
	if (!event)
		return 0;
	clear_nic(event, NIC_RDMA);
	event->event = type;
	/* one byte up to 5.12 */
	event->port = BPF_CORE_READ(reported, element.port_num) & 0xff;
	BPF_CORE_READ_STR_INTO(&event->device, reported, device, name);
	send_event(event);
	return 0;
}

/* include/trace/events/devlink.h, called by devlink_health_report() */
SEC("tp_btf/devlink_health_report")
int on_health(__u64 *ctx)
{
	struct devlink *devlink = (void *)ctx[0];
	struct nic_event *event = reserve_event(EVENT_NIC, sizeof(*event), 0);

	if (!event)
		return 0;
	clear_nic(event, NIC_HEALTH);
	bpf_probe_read_kernel_str(event->device, sizeof(event->device),
				  BPF_CORE_READ(devlink, dev, kobj.name));
	bpf_probe_read_kernel_str(event->reporter, sizeof(event->reporter), (void *)ctx[1]);
	bpf_probe_read_kernel_str(event->text, sizeof(event->text), (void *)ctx[2]);
	send_event(event);
	return 0;
}
