// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Limits the devices that a helper may open that reads files of tenants, to those whose opening
 * has no effect. A file in a container may be a device node of any driver, for example a
 * watchdog, and our container has permission to open them all.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define CHARACTER_DEVICE 2 /* BPF_DEVCG_DEV_CHAR */
#define MEMORY_MAJOR     1 /* include/uapi/linux/major.h: MEM_MAJOR */

/* Called by devcgroup_check_permission at each open(2) and mknod(2) of a device. */
SEC("cgroup/dev")
int may_open(struct bpf_cgroup_dev_ctx *ctx)
{
	if ((ctx->access_type & 0xFFFF) != CHARACTER_DEVICE || ctx->major != MEMORY_MAJOR)
		return 0;
	/* drivers/char/mem.c: null, zero, random, urandom */
	return ctx->minor == 3 || ctx->minor == 5 || ctx->minor == 8 || ctx->minor == 9;
}
