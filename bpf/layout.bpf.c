// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Never loaded: one global per shared type keeps its layout in this object's BTF, which the test
 * of kcover_ebpf/kernel/records/wire.py compares with the mirrors.
 */
#include "events.h"

struct thread_event thread_event;
struct totals_event totals_event;
struct socket_event socket_event;
struct descriptor_event descriptor_event;
struct fork_event fork_event;
struct exec_event exec_event;
struct exit_event exit_event;
struct oom_event oom_event;
struct signal_event signal_event;
struct fatal_event fatal_event;
struct retransmit_event retransmit_event;
struct tcp_state_event tcp_state_event;
struct process_value process_value;
struct detail_value detail_value;
struct pass_value pass_value;
struct lost_value lost_value;

enum event_type event_type;
enum thread_state thread_state;
enum descriptor_kind descriptor_kind;
