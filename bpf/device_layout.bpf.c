// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Never loaded; as layout.bpf.c, for the types of devices.h. */
#include "devices.h"

struct xid_event xid_event;
struct log_event log_event;
struct aer_event aer_event;
struct memory_event memory_event;
struct open_event open_event;
struct uvm_event uvm_event;
struct module_event module_event;
struct nic_event nic_event;
struct block_event block_event;
struct aer_key aer_key;
struct aer_value aer_value;
struct nccl_process_value nccl_process_value;
struct nccl_comm_key nccl_comm_key;
struct nccl_birth nccl_birth;
struct nccl_comm_value nccl_comm_value;
struct nccl_births_value nccl_births_value;
struct nccl_peer_key nccl_peer_key;
struct nccl_peer_value nccl_peer_value;

enum device_event_type device_event_type;
enum xid_rung xid_rung;
enum memory_source memory_source;
enum nic_source nic_source;
enum nccl_operation nccl_operation;
