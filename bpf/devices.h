/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Records of the kernel half about devices; kcover_ebpf/kernel/records/device_wire.py mirrors them.
 * The rules are those of events.h. A device is the kernel's name of a PCI function, "0000:5d:00.0",
 * ended by a zero.
 */
#ifndef KCOVER_DEVICES_H
#define KCOVER_DEVICES_H

#include "events.h"

#define DEVICE_BYTES       24
#define XID_TEXT_BYTES     256
#define LOG_TEXT_BYTES     512
#define MODULE_BYTES       56
#define AER_STATUS_BITS    32
#define MEMORY_LABEL_BYTES 64
#define UUID_BYTES         16
#define NIC_DEVICE_BYTES   64
#define NIC_REPORTER_BYTES 32
#define NIC_TEXT_BYTES     128
#define DISK_BYTES         32

#define NCCL_OPERATION_COUNT 10
#define NCCL_BIRTH_COUNT     32

enum device_event_type {
	EVENT_XID = 32,
	EVENT_LOG = 33,
	EVENT_AER = 34,
	EVENT_MEMORY = 35,
	EVENT_OPEN = 36,
	EVENT_UVM = 37,
	EVENT_MODULE = 38,
	EVENT_NIC = 39,
	EVENT_BLOCK = 40,
};

/* The values of Rung (in `facts`) that BPF programs can report. */
enum xid_rung {
	RUNG_KPROBE = 1,
	RUNG_TRACEPOINT = 2,
};

enum memory_source {
	MEMORY_EDAC = 1,
	MEMORY_PAGE = 2,
	MEMORY_MACHINE_CHECK = 3,
	MEMORY_ARM = 4,
	MEMORY_NON_STANDARD = 5,
};

enum nic_source {
	NIC_RDMA = 1,
	NIC_HEALTH = 2,
};

/* The header's pid is the process in whose context the driver ran, not the one at fault. */
struct xid_event {
	struct event_header header;
	__u32 number;
	__u32 rung; /* enum xid_rung */
	__u8 device[DEVICE_BYTES];
	__u8 text[XID_TEXT_BYTES]; /* empty if the driver's arguments lack it */
};

struct log_event {
	struct event_header header;
	__u8 text[LOG_TEXT_BYTES];
};

struct aer_event {
	struct event_header header;
	__u8 device[DEVICE_BYTES];
	__u32 status;
	__u32 severity; /* 0 non-fatal, 1 fatal, 2 corrected */
	__u64 total;    /* of this device and severity, since the probe was attached */
};

struct memory_event {
	struct event_header header;
	__u64 address; /* page frame number for MEMORY_PAGE; MPIDR of an arm64 processor */
	__u64 status;  /* machine check status, fate of the page, or processor state */
	__u32 source;  /* enum memory_source */
	__u32 severity;
	__u32 count;
	__u32 cpu;
	__u8 label[MEMORY_LABEL_BYTES];
};

struct open_event {
	struct event_header header;
	__u64 file; /* address of the struct file: forks and passed descriptors share it */
	__u32 minor;
	__u32 opened; /* 0: closed for the last time */
};

struct uvm_event {
	struct event_header header;
	__u8 uuid[UUID_BYTES];
	__u32 registered;
	__u32 pad;
};

struct module_event {
	struct event_header header;
	__u32 loaded;
	__u32 pad;
	__u8 name[MODULE_BYTES];
};

/* A fault reported by a network device's driver or by the RDMA core. */
struct nic_event {
	struct event_header header;
	__u32 source; /* enum nic_source */
	__u32 event;  /* enum ib_event_type for NIC_RDMA */
	__u32 port;   /* of an RDMA device */
	__u32 pad;
	__u8 device[NIC_DEVICE_BYTES];     /* PCI address; RDMA device name for NIC_RDMA */
	__u8 reporter[NIC_REPORTER_BYTES]; /* the part of the driver that reports, for NIC_HEALTH */
	__u8 text[NIC_TEXT_BYTES];
};

/* A request that a block device failed. */
struct block_event {
	struct event_header header;
	__u64 sector; /* of 512 bytes */
	__u32 bytes;
	__u32 status;    /* blk_status_t */
	__u32 operation; /* enum req_op */
	__u32 major;
	__u32 minor; /* of the whole disk */
	__u32 pad;
	__u8 disk[DISK_BYTES];
};

struct aer_key {
	__u8 device[DEVICE_BYTES];
	__u32 severity;
	__u32 pad;
};

/* Counters only grow, so that a reader cannot lose increments made while it reads. */
struct aer_value {
	__u64 total;
	__u64 reported_ns;
	__u32 bit_count[AER_STATUS_BITS];
};

/* Operations of a process's NCCL library; indexes of `launched_count`. */
enum nccl_operation {
	NCCL_ALL_REDUCE = 0,
	NCCL_ALL_GATHER = 1,
	NCCL_REDUCE_SCATTER = 2,
	NCCL_BROADCAST = 3,
	NCCL_REDUCE = 4,
	NCCL_ALL_TO_ALL = 5,
	NCCL_GATHER = 6,
	NCCL_SCATTER = 7,
	NCCL_SEND = 8,
	NCCL_RECEIVE = 9,
};

/* A process whose operations are counted; the existence of the entry makes it counted. */
struct nccl_process_value {
	__u64 launched_count; /* of all kinds, on all communicators */
	__u64 lost_count;     /* communicators and peers without room */
	__u32 comm_count;     /* with an entry now */
	__u32 peer_count;
};

struct nccl_comm_key {
	__u64 comm; /* its handle in the program */
	__u32 pid;
	__u32 pad;
};

/*
 * Where a process wants the handle of a new communicator stored. The handle is not there yet when
 * the function is entered.
 */
struct nccl_birth {
	__u64 address;  /* of the program's variable; 0: no entry */
	__u64 identity; /* the same for all ranks of a communicator */
	__u32 size;     /* ranks; 0: unknown, created by a split */
	__u32 rank;     /* for a split: number in the parent communicator */
	__s32 key;      /* the order of the ranks of a split */
	__u32 is_split;
};

struct nccl_comm_value {
	struct nccl_birth birth; /* all 0: the communicator was created before the probes */
	__u32 split_count;
	__u32 pad;
	__u64 launched_count[NCCL_OPERATION_COUNT];
};

/* Communicators that a process has requested and not used yet. */
struct nccl_births_value {
	__u32 next;
	__u32 pad;
	struct nccl_birth births[NCCL_BIRTH_COUNT];
};

struct nccl_peer_key {
	__u64 identity;
	__u32 pid;
	__u32 peer; /* a rank of the communicator */
};

struct nccl_peer_value {
	__u64 sent_count;
	__u64 received_count;
};

#endif
