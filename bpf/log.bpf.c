// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Lines that device drivers print, as they are printed, and modules that come and go. Kernels
 * before 6.0 call the tracepoint only for what reaches the console: a self-test at start tells.
 */
#include "device_kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "devices.h"
#include "emit.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Room for each beginning that is looked for, and for the stamp that may precede it. */
#define PREFIX_BYTES 32

static __always_inline bool begins(const char *text, const char *prefix, int length)
{
	for (int i = 0; i < length; i++)
		if (text[i] != prefix[i])
			return false;
	return true;
}

#define BEGINS(text, literal) begins(text, literal, sizeof(literal) - 1)

static __always_inline bool from_driver(const char *text)
{
	if (BEGINS(text, "pcieport "))
		/* "0000:5d:00.0: pciehp"; what else ports say is thousands of corrected errors */
		return BEGINS(text + 21, ": pciehp") || BEGINS(text + 22, ": pciehp");
	return BEGINS(text, "NVRM: ") || BEGINS(text, "nvidia-nvswitch") ||
	       BEGINS(text, "mlx5_core ") || BEGINS(text, "kcover-ebpf ");
}

/*
 * Bytes of the console's "[12345.678901][ T123] " that older kernels put before the first line of a
 * record; 0 if there is none.
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

/* include/trace/events/printk.h, called by printk_sprint() in kernel/printk/printk.c */
SEC("tp_btf/console")
int BPF_PROG(on_console, const char *text, __u64 length)
{
	char head[PREFIX_BYTES] = {};
	struct log_event *event;
	__u64 skip;

	if (bpf_probe_read_kernel_str(head, sizeof(head), text) < 0)
		return 0;
	skip = stamp_bytes(head);
	if (skip) {
		/* A copy of which the verifier knows nothing: it need not check each value. */
		bpf_probe_read_kernel(&skip, sizeof(skip), &skip);
		if (bpf_probe_read_kernel_str(head, sizeof(head), text + skip) < 0)
			return 0;
	}
	if (!from_driver(head))
		return 0;
	event = reserve_message(EVENT_LOG, sizeof(*event), bpf_get_current_pid_tgid() >> 32);
	if (!event)
		return 0;
	__builtin_memset(event->text, 0, sizeof(event->text));
	/* the text has no end of its own */
	length -= skip;
	if (length > sizeof(event->text) - 1)
		length = sizeof(event->text) - 1;
	bpf_probe_read_kernel(event->text, length, text + skip);
	bpf_ringbuf_submit(event, 0);
	return 0;
}

static __always_inline void tell_module(struct module *module, __u32 loaded)
{
	struct module_event *event = reserve_message(EVENT_MODULE, sizeof(*event), 0);

	if (!event)
		return;
	event->loaded = loaded;
	event->pad = 0;
	bpf_probe_read_kernel(event->name, sizeof(event->name), module->name);
	bpf_ringbuf_submit(event, 0);
}

/* include/trace/events/module.h, called by load_module() before the module's init function */
SEC("tp_btf/module_load")
int BPF_PROG(on_module_load, struct module *module)
{
	tell_module(module, 1);
	return 0;
}

SEC("tp_btf/module_free")
int BPF_PROG(on_module_free, struct module *module)
{
	tell_module(module, 0);
	return 0;
}
