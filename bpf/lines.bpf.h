/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Selects the lines of the kernel's log that are reported, and limits their rate. */
#ifndef KCOVER_LINES_BPF_H
#define KCOVER_LINES_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include "devices.h"
#include "emit.bpf.h"

/* Longest prefix that is searched for, plus the time stamp that may precede it. */
#define PREFIX_BYTES 32

static __always_inline bool begins(const char *text, const char *prefix, int length)
{
	for (int i = 0; i < length; i++)
		if (text[i] != prefix[i])
			return false;
	return true;
}

#define BEGINS(text, literal) begins(text, literal, sizeof(literal) - 1)

/*
 * The source of a line of interest. Faults have a separate budget from the driver's other lines.
 */
enum line_source {
	LINE_OTHER,
	LINE_PORT,
	LINE_XID,
	LINE_GPU,
	LINE_SWITCH,
	LINE_AMD_GPU,
	LINE_NIC,
	LINE_OURS,
	LINE_SOURCES,
};

/*
 * Most lines per second from one source: a fault takes a few, a driver that prints in a loop
 * thousands.
 */
#define LINES_PER_S 50
#define SECOND_NS   1000000000ULL

struct line_budget {
	__u64 began_ns;
	__u64 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LINE_SOURCES);
	__type(key, __u32);
	__type(value, struct line_budget);
} line_budgets SEC(".maps");

/*
 * Two CPUs may begin a second at the same time: that passes a few lines too many, never too few.
 */
static __always_inline bool is_in_budget(__u32 source)
{
	struct line_budget *budget = bpf_map_lookup_elem(&line_budgets, &source);
	__u64 now_ns = bpf_ktime_get_boot_ns();

	if (!budget)
		return false;
	if (now_ns - budget->began_ns >= SECOND_NS) {
		budget->began_ns = now_ns;
		budget->count = 0;
	}
	__sync_fetch_and_add(&budget->count, 1);
	if (budget->count <= LINES_PER_S)
		return true;
	COUNT_LOST(message_count);
	return false;
}

static __always_inline __u32 source_of(const char *text)
{
	/* "0000:5d:00.0: pciehp"; the other lines of ports are thousands of corrected errors */
	if (BEGINS(text, "pcieport "))
		return BEGINS(text + 21, ": pciehp") || BEGINS(text + 22, ": pciehp") ? LINE_PORT
										      : LINE_OTHER;
	if (BEGINS(text, "NVRM: Xid"))
		return LINE_XID;
	if (BEGINS(text, "NVRM: "))
		return LINE_GPU;
	if (BEGINS(text, "nvidia-nvswitch"))
		return LINE_SWITCH;
	if (BEGINS(text, "amdgpu "))
		return LINE_AMD_GPU;
	if (BEGINS(text, "mlx5_core "))
		return LINE_NIC;
	return BEGINS(text, "kcover-ebpf ") ? LINE_OURS : LINE_OTHER;
}

/*
 * Length of the console's "[12345.678901][ T123] ", which older kernels put before the first line
 * of a record; 0 if there is none.
 */
static __always_inline int stamp_bytes(const char *head)
{
	bool closed = false;

	if (head[0] != '[')
		return 0;
	for (int i = 1; i < PREFIX_BYTES - 1; i++) {
		if (head[i] == ']')
			closed = true;
		else if (closed && head[i] == ' ')
			return i + 1;
		else
			closed = false;
	}
	return 0;
}

static __always_inline int emit_line(const char *text, __u64 length)
{
	char head[PREFIX_BYTES] = {};
	struct log_event *event;
	__u32 source;
	__u64 skip;

	if (bpf_probe_read_kernel_str(head, sizeof(head), text) < 0)
		return 0;
	skip = stamp_bytes(head);
	if (skip) {
		/*
		 * A copy whose value the verifier does not track, so that it need not check each
		 * possible value.
		 */
		bpf_probe_read_kernel(&skip, sizeof(skip), &skip);
		if (bpf_probe_read_kernel_str(head, sizeof(head), text + skip) < 0)
			return 0;
	}
	source = source_of(head);
	if (source == LINE_OTHER || !is_in_budget(source))
		return 0;
	event = reserve_message(EVENT_LOG, sizeof(*event), bpf_get_current_pid_tgid() >> 32);
	if (!event)
		return 0;
	__builtin_memset(event->text, 0, sizeof(event->text));
	/* the text has no terminating zero */
	length -= skip;
	if (length > sizeof(event->text) - 1)
		length = sizeof(event->text) - 1;
	bpf_probe_read_kernel(event->text, length, text + skip);
	send_event(event);
	return 0;
}

#endif
