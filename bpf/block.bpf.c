// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Requests that a block device failed, since Linux 5.18. They are rare. */
#include "device_kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "devices.h"
#include "emit.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* include/trace/events/block.h, called by blk_update_request() next to the line in the log */
SEC("tp_btf/block_rq_error")
int on_block_error(__u64 *ctx)
{
	struct block_event *event = reserve_event(EVENT_BLOCK, sizeof(*event), 0);
	struct request *request = (void *)ctx[0];
	struct gendisk *disk;

	if (!event)
		return 0;
	disk = BPF_CORE_READ(request, q, disk);
	event->sector = BPF_CORE_READ(request, __sector);
	event->bytes = ctx[2];
	event->status = (__u8)ctx[1];
	event->operation = BPF_CORE_READ(request, cmd_flags) & 0xff;
	event->major = BPF_CORE_READ(disk, major);
	event->minor = BPF_CORE_READ(disk, first_minor);
	event->pad = 0;
	__builtin_memset(event->disk, 0, sizeof(event->disk));
	BPF_CORE_READ_STR_INTO(&event->disk, disk, disk_name);
	send_event(event);
	return 0;
}
