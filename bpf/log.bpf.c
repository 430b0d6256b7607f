// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Lines of device drivers at the moment they are printed, and loading and unloading of modules.
 * Kernels before 6.0 call the tracepoint only for lines that reach the console; a self-test at
 * start shows whether they do. On those kernels, the functions that store a record are probed
 * instead.
 */
#include "device_kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "devices.h"
#include "emit.bpf.h"
#include "kprobe.bpf.h"
#include "lines.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* include/trace/events/printk.h, called by printk_sprint() in kernel/printk/printk.c */
SEC("tp_btf/console")
int BPF_PROG(on_console, const char *text, __u64 length)
{
	return emit_line(text, length);
}

/*
 * The text of a record that is about to become readable, as get_data() in
 * kernel/printk/printk_ringbuffer.c finds it: after the number of its descriptor, or at the
 * beginning of the ring if it would cross the end.
 */
static __always_inline int emit_record(struct prb_reserved_entry *entry)
{
	struct printk_ringbuffer *ring = BPF_CORE_READ(entry, rb);
	__u32 size_bits = BPF_CORE_READ(ring, text_data_ring.size_bits) & 63;
	__u32 count_bits = BPF_CORE_READ(ring, desc_ring.count_bits) & 63;
	__u64 index = BPF_CORE_READ(entry, id) & ((1ULL << count_bits) - 1);
	void *desc = (void *)BPF_CORE_READ(ring, desc_ring.descs) +
		     index * bpf_core_type_size(struct prb_desc);
	void *info = (void *)BPF_CORE_READ(ring, desc_ring.infos) +
		     index * bpf_core_type_size(struct printk_info);
	__u64 begin = BPF_CORE_READ((struct prb_desc *)desc, text_blk_lpos.begin);
	__u64 next = BPF_CORE_READ((struct prb_desc *)desc, text_blk_lpos.next);
	__u64 length = BPF_CORE_READ((struct printk_info *)info, text_len);
	__u64 offset = begin & ((1ULL << size_bits) - 1);

	/* an odd position denotes a record without text */
	if (begin & 1 || next & 1)
		return 0;
	if (begin >> size_bits != next >> size_bits)
		offset = 0;
	return emit_line(BPF_CORE_READ(ring, text_data_ring.data) + offset + sizeof(long), length);
}

/* Called by vprintk_store() for a complete record. */
SEC("kprobe/prb_final_commit")
int on_stored(struct pt_regs___kprobe *regs)
{
	return emit_record(KPROBE_ARG0(regs));
}

/*
 * Called for a record that may be continued, which is printed with KERN_CONT or without a
 * newline.
 */
SEC("kprobe/prb_commit")
int on_continued(struct pt_regs___kprobe *regs)
{
	return emit_record(KPROBE_ARG0(regs));
}

static __always_inline void emit_module(struct module *module, __u32 loaded)
{
	struct module_event *event = reserve_message(EVENT_MODULE, sizeof(*event), 0);

	if (!event)
		return;
	event->loaded = loaded;
	event->pad = 0;
	bpf_probe_read_kernel(event->name, sizeof(event->name), module->name);
	send_event(event);
}

/* include/trace/events/module.h, called by load_module() before the module's init function */
SEC("tp_btf/module_load")
int BPF_PROG(on_module_load, struct module *module)
{
	emit_module(module, 1);
	return 0;
}

SEC("tp_btf/module_free")
int BPF_PROG(on_module_free, struct module *module)
{
	emit_module(module, 0);
	return 0;
}
