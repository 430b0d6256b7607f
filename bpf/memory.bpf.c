// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Errors of the host's memory and processors. All are rare. */
#include "device_kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "devices.h"
#include "emit.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

static __always_inline struct memory_event *reserve_memory(__u32 source)
{
	struct memory_event *event = reserve_event(EVENT_MEMORY, sizeof(*event), 0);

	if (!event)
		return NULL;
	event->source = source;
	event->address = 0;
	event->status = 0;
	event->severity = 0;
	event->count = 1;
	event->cpu = 0;
	__builtin_memset(event->label, 0, sizeof(event->label));
	return event;
}

/* include/ras/ras_event.h, called by edac_raw_mc_handle_error() in drivers/edac/edac_mc.c */
SEC("tp_btf/mc_event")
int on_memory_controller(__u64 *ctx)
{
	struct memory_event *event = reserve_memory(MEMORY_EDAC);

	if (!event)
		return 0;
	event->severity = ctx[0]; /* enum hw_event_mc_err_type: 0 is corrected */
	event->count = ctx[3];
	event->address = ctx[8];
	bpf_probe_read_kernel_str(event->label, sizeof(event->label), (void *)ctx[2]);
	send_event(event);
	return 0;
}

/* include/ras/ras_event.h, called by action_result() in mm/memory-failure.c */
SEC("tp_btf/memory_failure_event")
int BPF_PROG(on_page, unsigned long page_frame, int type, int result)
{
	struct memory_event *event = reserve_memory(MEMORY_PAGE);

	if (!event)
		return 0;
	event->address = page_frame;
	event->status = (__u32)result;
	event->severity = type;
	send_event(event);
	return 0;
}

/* include/trace/events/mce.h, called by the machine check decoder chain */
SEC("tp_btf/mce_record")
int on_machine_check(__u64 *ctx)
{
	struct memory_event *event = reserve_memory(MEMORY_MACHINE_CHECK);
	struct mce *record = (void *)ctx[0];

	if (!event)
		return 0;
	event->status = BPF_CORE_READ(record, status);
	event->address = BPF_CORE_READ(record, addr);
	event->cpu = BPF_CORE_READ(record, extcpu);
	event->severity = BPF_CORE_READ(record, bank);
	send_event(event);
	return 0;
}

/* include/ras/ras_event.h, called by log_arm_hw_error() in drivers/ras/ras.c for firmware's reports
 */
SEC("tp_btf/arm_event")
int on_arm_processor(__u64 *ctx)
{
	struct memory_event *event = reserve_memory(MEMORY_ARM);
	struct cper_sec_proc_arm *section = (void *)ctx[0];

	if (!event)
		return 0;
	event->severity = BPF_CORE_READ(section, validation_bits);
	event->address = BPF_CORE_READ(section, mpidr);
	event->status = BPF_CORE_READ(section, running_state);
	send_event(event);
	return 0;
}

/*
 * include/ras/ras_event.h, called by log_non_standard_event() in drivers/ras/ras.c: sections of
 * firmware reports in a vendor's own format, such as those of NVIDIA's processors
 */
SEC("tp_btf/non_standard_event")
int on_vendor_section(__u64 *ctx)
{
	struct memory_event *event = reserve_memory(MEMORY_NON_STANDARD);

	if (!event)
		return 0;
	event->severity = (__u8)ctx[3]; /* include/acpi/ghes.h: GHES_SEV_* */
	bpf_probe_read_kernel_str(event->label, sizeof(event->label), (void *)ctx[2]);
	send_event(event);
	return 0;
}
