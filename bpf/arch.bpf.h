/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The one place that knows registers: where each architecture keeps the number and arguments of
 * the system call that a thread sits in, as saved at the thread's last entry into the kernel.
 */
#ifndef KCOVER_ARCH_BPF_H
#define KCOVER_ARCH_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#if defined(__TARGET_ARCH_x86)

struct pt_regs {
	unsigned long r10;
	unsigned long r9;
	unsigned long r8;
	unsigned long ax;
	unsigned long dx;
	unsigned long si;
	unsigned long di;
	unsigned long orig_ax;
	unsigned long ip;
	unsigned long sp;
} __attribute__((preserve_access_index));

#define REGS_SYSCALL(regs) ((__s32)BPF_CORE_READ(regs, orig_ax))
#define REGS_ARG0(regs)    BPF_CORE_READ(regs, di)
#define REGS_ARG1(regs)    BPF_CORE_READ(regs, si)
#define REGS_ARG2(regs)    BPF_CORE_READ(regs, dx)
#define REGS_ARG3(regs)    BPF_CORE_READ(regs, r10)
#define REGS_ARG4(regs)    BPF_CORE_READ(regs, r8)
#define REGS_ARG5(regs)    BPF_CORE_READ(regs, r9)
#define REGS_SP(regs)      BPF_CORE_READ(regs, sp)
#define REGS_IP(regs)      BPF_CORE_READ(regs, ip)
/*
 * The entry code stores -ENOSYS as result, and the call's own result replaces it at the end
 * (arch/x86/entry/entry_64.S), so anything else means that the call is over.
 */
#define REGS_CALL_IS_OVER(regs) ((long)BPF_CORE_READ(regs, ax) != -38)

#elif defined(__TARGET_ARCH_arm64)

struct pt_regs {
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__u64 orig_x0;
	__s32 syscallno;
} __attribute__((preserve_access_index));

#define REGS_SYSCALL(regs)      BPF_CORE_READ(regs, syscallno)
#define REGS_ARG0(regs)         BPF_CORE_READ(regs, orig_x0)
#define REGS_ARG1(regs)         BPF_CORE_READ(regs, regs[1])
#define REGS_ARG2(regs)         BPF_CORE_READ(regs, regs[2])
#define REGS_ARG3(regs)         BPF_CORE_READ(regs, regs[3])
#define REGS_ARG4(regs)         BPF_CORE_READ(regs, regs[4])
#define REGS_ARG5(regs)         BPF_CORE_READ(regs, regs[5])
#define REGS_SP(regs)           BPF_CORE_READ(regs, sp)
#define REGS_IP(regs)           BPF_CORE_READ(regs, pc)
/* No mark is left when a call ends; the next interrupt resets syscallno
 * (arch/arm64/kernel/entry.S). */
#define REGS_CALL_IS_OVER(regs) false

#else
#error "add the registers of this architecture"
#endif

#endif
