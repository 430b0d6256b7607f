// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Reports of the GPU driver, and users of a GPU, from functions of its interface layer
 * (kernel-open/nvidia, the same in the open and the proprietary flavour since 470). A kprobe does
 * not prevent unloading of the driver; the tracepoint does, and is attached only on request.
 */
#include "device_kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include "devices.h"
#include "emit.bpf.h"
#include "kprobe.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define MINOR_MASK 0xfffff /* include/linux/kdev_t.h */

static __always_inline void fill_xid(struct xid_event *event, struct pci_dev *dev, __u32 number,
				     __u32 rung)
{
	event->number = number;
	event->rung = rung;
	__builtin_memset(event->device, 0, sizeof(event->device));
	__builtin_memset(event->text, 0, sizeof(event->text));
	bpf_probe_read_kernel_str(event->device, sizeof(event->device),
				  BPF_CORE_READ(dev, dev.kobj.name));
}

/* The first value of a va_list (System V ABI for x86-64; AAPCS64), NULL if it is not where
 * expected. */
static __always_inline const char *first_value(const void *list)
{
	const char *value = NULL;
#if defined(__TARGET_ARCH_x86)
	struct {
		__u32 gp_offset;
		__u32 fp_offset;
		void *overflow_area;
		void *save_area;
	} args = {};

	bpf_probe_read_kernel(&args, sizeof(args), list);
	if (args.gp_offset < 48)
		bpf_probe_read_kernel(&value, sizeof(value), args.save_area + args.gp_offset);
	else
		bpf_probe_read_kernel(&value, sizeof(value), args.overflow_area);
#elif defined(__TARGET_ARCH_arm64)
	struct {
		void *stack;
		void *gr_top;
		void *vr_top;
		__s32 gr_offset;
		__s32 vr_offset;
	} args = {};

	bpf_probe_read_kernel(&args, sizeof(args), list);
	if (args.gr_offset < 0)
		bpf_probe_read_kernel(&value, sizeof(value), args.gr_top + args.gr_offset);
	else
		bpf_probe_read_kernel(&value, sizeof(value), args.stack);
#endif
	return value;
}

/*
 * nv_report_error() in nv-report-err.c, called after the line was printed, by the same thread.
 * Messages worded by the GPU's firmware arrive as "%s" and one text; other formats are passed on
 * unformatted, and say enough.
 */
SEC("kprobe/nv_report_error")
int on_xid(struct pt_regs___kprobe *regs)
{
	struct pci_dev *dev = KPROBE_ARG0(regs);
	const char *format = KPROBE_ARG2(regs);
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct xid_event *event;
	char start[4] = {};

	bpf_probe_read_kernel_str(start, sizeof(start), format);
	if (start[0] == '%' && start[1] == 's' && !start[2])
		format = first_value(KPROBE_ARG3(regs));
	event = reserve_event(EVENT_XID, sizeof(*event), pid);
	if (!event)
		return 0;
	fill_xid(event, dev, (__u64)KPROBE_ARG1(regs), RUNG_KPROBE);
	bpf_probe_read_kernel_str(event->text, sizeof(event->text), format);
	send_event(event);
	return 0;
}

/* nv-tracepoint.h of open drivers since 575.51.02 */
SEC("raw_tp/nvidia_dev_xid")
int on_xid_tracepoint(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct xid_event *event = reserve_event(EVENT_XID, sizeof(*event), pid);

	if (!event)
		return 0;
	fill_xid(event, (void *)ctx->args[0], ctx->args[1], RUNG_TRACEPOINT);
	bpf_probe_read_kernel_str(event->text, sizeof(event->text), (void *)ctx->args[2]);
	send_event(event);
	return 0;
}

static __always_inline void emit_open(struct inode *inode, struct file *file, __u32 opened)
{
	struct inode___device *node = (void *)inode;
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct open_event *event = reserve_message(EVENT_OPEN, sizeof(*event), pid);

	if (!event)
		return;
	event->file = (__u64)file;
	event->minor = BPF_CORE_READ(node, i_rdev) & MINOR_MASK;
	event->opened = opened;
	send_event(event);
}

/* nvidia_open() in nv.c, in the caller's context even if the device is started later */
SEC("kprobe/nvidia_open")
int on_open(struct pt_regs___kprobe *regs)
{
	emit_open(KPROBE_ARG0(regs), KPROBE_ARG1(regs), 1);
	return 0;
}

/* nvidia_close() in nv.c, at the last reference, possibly in another process */
SEC("kprobe/nvidia_close")
int on_close(struct pt_regs___kprobe *regs)
{
	emit_open(KPROBE_ARG0(regs), KPROBE_ARG1(regs), 0);
	return 0;
}

/* The beginning of UVM_REGISTER_GPU_PARAMS in uvm_ioctl.h, equal from 515 to 595 */
struct register_params {
	__u8 uuid[UUID_BYTES];
};

static __always_inline void emit_uvm(const struct register_params *params, __u32 registered)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct uvm_event *event = reserve_message(EVENT_UVM, sizeof(*event), pid);

	if (!event)
		return;
	event->registered = registered;
	event->pad = 0;
	__builtin_memset(event->uuid, 0, sizeof(event->uuid));
	bpf_probe_read_kernel(event->uuid, sizeof(event->uuid), params->uuid);
	send_event(event);
}

/* uvm.c, in the process, once for each GPU on which it creates a CUDA context */
SEC("kprobe/uvm_api_register_gpu")
int on_register(struct pt_regs___kprobe *regs)
{
	emit_uvm(KPROBE_ARG0(regs), 1);
	return 0;
}

SEC("kprobe/uvm_api_unregister_gpu")
int on_unregister(struct pt_regs___kprobe *regs)
{
	emit_uvm(KPROBE_ARG0(regs), 0);
	return 0;
}
