/* SPDX-License-Identifier: GPL-2.0-only */
/* The tracepoint that open drivers have since 575.51.02: same system, name and raw arguments. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM nvidia

#if !defined(STUB_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define STUB_TRACE_H

#include <linux/pci.h>
#include <linux/tracepoint.h>
#include <linux/version.h>

/* 2c92ca849fcc ("tracing/treewide: Remove second parameter of __assign_str()", 6.10) */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
#define assign(field, text) __assign_str(field)
#else
#define assign(field, text) __assign_str(field, text)
#endif

TRACE_EVENT(nvidia_dev_xid,
	TP_PROTO(const struct pci_dev *pdev, u32 error_code, const char *msg),
	TP_ARGS(pdev, error_code, msg),
	TP_STRUCT__entry(
		__string(dev, pci_name(pdev))
		__field(u32, error_code)
		__string(msg, msg)
	),
	TP_fast_assign(
		assign(dev, pci_name(pdev));
		__entry->error_code = error_code;
		assign(msg, msg);
	),
	TP_printk("Xid (PCI:%s): %u, %s", __get_str(dev), __entry->error_code, __get_str(msg))
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
