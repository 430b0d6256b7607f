/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The kernel's structures that the device families read, reduced to the fields that are used. */
#ifndef KCOVER_DEVICE_KERNEL_H
#define KCOVER_DEVICE_KERNEL_H

#include "kernel.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kobject {
	const char *name;
};

struct device {
	struct kobject kobj;
};

struct pci_dev {
	struct device dev;
};

/* include/linux/fs.h: the device number of a device file */
struct inode___device {
	__u32 i_rdev;
};

/* include/linux/blk-mq.h, blkdev.h; the disk is the queue's since 5.16 */
struct gendisk {
	int major;
	int first_minor;
	char disk_name[32];
};

struct request_queue {
	struct gendisk *disk;
};

struct request {
	struct request_queue *q;
	__u32 cmd_flags;
	__u64 __sector;
};

struct devlink {
	struct device *dev;
};

/* include/rdma/ib_verbs.h */
struct ib_device {
	char name[64];
};

/* The event concerns a device or a port, not a single queue. */
enum ib_event_type {
	IB_EVENT_DEVICE_FATAL = 8,
	IB_EVENT_PORT_ACTIVE = 9,
	IB_EVENT_PORT_ERR = 10,
};

struct ib_event {
	struct ib_device *device;
	union {
		__u32 port_num;
	} element;
	enum ib_event_type event;
};

struct module {
	char name[56];
};

/* arch/x86/include/asm/mce.h (uapi before 6.12); the first member of what newer kernels pass */
struct mce {
	__u64 status;
	__u64 addr;
	__u32 extcpu;
	__u8 bank;
};

/* kernel/printk/printk_ringbuffer.h, since 5.10: the log, and a record that is being written */
struct printk_info {
	__u16 text_len;
};

struct prb_data_blk_lpos {
	unsigned long begin;
	unsigned long next;
};

struct prb_data_ring {
	unsigned int size_bits;
	char *data;
};

struct prb_desc {
	struct prb_data_blk_lpos text_blk_lpos;
};

struct prb_desc_ring {
	unsigned int count_bits;
	struct prb_desc *descs;
	struct printk_info *infos;
};

struct printk_ringbuffer {
	struct prb_desc_ring desc_ring;
	struct prb_data_ring text_data_ring;
};

struct prb_reserved_entry {
	struct printk_ringbuffer *rb;
	unsigned long id;
};

/* include/linux/cper.h: what firmware reports about an arm64 processor (UEFI, N.2.4.4) */
struct cper_sec_proc_arm {
	__u32 validation_bits;
	__u64 mpidr;
	__u32 running_state;
};

#pragma clang attribute pop

#endif
