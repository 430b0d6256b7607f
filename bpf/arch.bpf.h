/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The only file that knows registers: where each architecture keeps the number and arguments of
 * the system call that a thread is in, as saved at the thread's last entry into the kernel.
 */
#ifndef KCOVER_ARCH_BPF_H
#define KCOVER_ARCH_BPF_H

#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/*
 * Added to call numbers of another interface than the machine's own (a 32-bit program), whose
 * numbers differ, so that they match no known call.
 */
#define FOREIGN_SYSCALLS 0x100000

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

/* arch/x86/entry/syscalls/syscall_64.tbl; a sleep is nanosleep or clock_nanosleep */
#define RESTART_SYSCALL    219
#define FUTEX_SYSCALL      202
#define IS_SLEEP(syscall)  ((syscall) == 35 || (syscall) == 230)
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
#define REGS_STOP_FORGETS_CALL  false

/* arch/x86/include/asm/thread_info.h: in a call of the 32-bit interface */
#define TS_COMPAT 0x0002

static __always_inline bool is_32_bit_call(struct task_struct *task)
{
	return bpf_core_field_exists(task->thread_info.status) &&
	       task->thread_info.status & TS_COMPAT;
}

#elif defined(__TARGET_ARCH_arm64)

struct pt_regs {
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__u64 orig_x0;
	__s32 syscallno;
} __attribute__((preserve_access_index));

/* include/uapi/asm-generic/unistd.h; a sleep is nanosleep or clock_nanosleep */
#define RESTART_SYSCALL         128
#define FUTEX_SYSCALL           98
#define IS_SLEEP(syscall)       ((syscall) == 101 || (syscall) == 115)
#define REGS_SYSCALL(regs)      BPF_CORE_READ(regs, syscallno)
#define REGS_ARG0(regs)         BPF_CORE_READ(regs, orig_x0)
#define REGS_ARG1(regs)         BPF_CORE_READ(regs, regs[1])
#define REGS_ARG2(regs)         BPF_CORE_READ(regs, regs[2])
#define REGS_ARG3(regs)         BPF_CORE_READ(regs, regs[3])
#define REGS_ARG4(regs)         BPF_CORE_READ(regs, regs[4])
#define REGS_ARG5(regs)         BPF_CORE_READ(regs, regs[5])
#define REGS_SP(regs)           BPF_CORE_READ(regs, sp)
#define REGS_IP(regs)           BPF_CORE_READ(regs, pc)
/*
 * The entry code saves the first argument separately, and the call's result replaces it in its
 * register (arch/arm64/kernel/syscall.c). So a difference means that the call is over. If a
 * result equals the first argument, the call seems to be in progress until the next interrupt
 * resets syscallno.
 */
#define REGS_CALL_IS_OVER(regs) (BPF_CORE_READ(regs, regs[0]) != BPF_CORE_READ(regs, orig_x0))
/* Before a thread stops, do_signal() has forgotten its call and stepped back to it
 * (arch/arm64/kernel/signal.c). */
#define REGS_STOP_FORGETS_CALL  true

/* arch/arm64/include/asm/thread_info.h: a process of the 32-bit interface */
#define TIF_32BIT               (1UL << 22)

static __always_inline bool is_32_bit_call(struct task_struct *task)
{
	return task->thread_info.flags & TIF_32BIT;
}

#else
#error "add the registers of this architecture"
#endif

#endif
