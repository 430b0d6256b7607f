// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * PCI Express errors. A bad link may report thousands of corrected errors per second. So these
 * are counted here, separately for each bit, and reported at most once per interval and device.
 * Other errors are reported at once.
 */
#include "device_kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
#include "devices.h"
#include "emit.bpf.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define CORRECTED 2 /* include/linux/aer.h */

const volatile __u64 corrected_interval_ns = 1000000000;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct aer_key);
	__type(value, struct aer_value);
} aer_totals SEC(".maps");

static __always_inline struct aer_value *entry_of(const struct aer_key *key)
{
	struct aer_value *value = bpf_map_lookup_elem(&aer_totals, key);
	struct aer_value fresh = {};

	if (value)
		return value;
	bpf_map_update_elem(&aer_totals, key, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&aer_totals, key);
}

static __always_inline void count_bits(struct aer_value *value, __u32 status)
{
	for (int bit = 0; bit < AER_STATUS_BITS; bit++)
		if (status & 1U << bit)
			__sync_fetch_and_add(&value->bit_count[bit], 1);
}

static __always_inline void emit_aer(const struct aer_key *key, __u32 status, __u64 total)
{
	struct aer_event *event = reserve_event(EVENT_AER, sizeof(*event), 0);

	if (!event)
		return;
	__builtin_memcpy(event->device, key->device, sizeof(event->device));
	event->status = status;
	event->severity = key->severity;
	event->total = total;
	send_event(event);
}

/* include/ras/ras_event.h, called by aer_print_error() and pci_print_aer() in
 * drivers/pci/pcie/aer.c */
SEC("tp_btf/aer_event")
int BPF_PROG(on_aer, const char *device, __u32 status, __u8 severity)
{
	__u64 now = bpf_ktime_get_boot_ns();
	struct aer_key key = {};
	struct aer_value *value;
	__u64 total;

	bpf_probe_read_kernel_str(key.device, sizeof(key.device), device);
	key.severity = severity;
	value = entry_of(&key);
	if (!value) {
		/* no room for this device: its errors are reported one by one, uncounted */
		emit_aer(&key, status, 0);
		return 0;
	}
	count_bits(value, status);
	/* kernels before 5.12 have no atomic operation that returns the sum */
	__sync_fetch_and_add(&value->total, 1);
	total = value->total;
	if (severity == CORRECTED && now - value->reported_ns < corrected_interval_ns && total > 1)
		return 0;
	value->reported_ns = now;
	emit_aer(&key, status, total);
	return 0;
}
