/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The first arguments of a probed function, by the calling convention of each architecture. */
#ifndef KCOVER_KPROBE_BPF_H
#define KCOVER_KPROBE_BPF_H

#include "kernel.h"

#include <bpf/bpf_helpers.h>

#if defined(__TARGET_ARCH_x86)

static __always_inline void *user_word(const void *address)
{
	void *value = NULL;

	bpf_probe_read_user(&value, sizeof(value), address);
	return value;
}

struct pt_regs___kprobe {
	unsigned long di;
	unsigned long si;
	unsigned long dx;
	unsigned long cx;
	unsigned long r8;
	unsigned long r9;
	unsigned long sp;
} __attribute__((preserve_access_index));

#define KPROBE_ARG0(regs) ((void *)(regs)->di)
#define KPROBE_ARG1(regs) ((void *)(regs)->si)
#define KPROBE_ARG2(regs) ((void *)(regs)->dx)
#define KPROBE_ARG3(regs) ((void *)(regs)->cx)
#define KPROBE_ARG4(regs) ((void *)(regs)->r8)
#define KPROBE_ARG5(regs) ((void *)(regs)->r9)
/* For a user function: the return address is the first word on its stack. */
#define KPROBE_ARG6(regs) user_word((void *)((regs)->sp + 8))
/*
 * A third argument that is a struct of more than 16 bytes is on the stack, and uses no register.
 */
#define KPROBE_STRUCT2(regs)           ((void *)((regs)->sp + 8))
#define KPROBE_ARG_AFTER_STRUCT2(regs) KPROBE_ARG2(regs)

#elif defined(__TARGET_ARCH_arm64)

struct pt_regs___kprobe {
	__u64 regs[31];
} __attribute__((preserve_access_index));

#define KPROBE_ARG0(registers)              ((void *)(registers)->regs[0])
#define KPROBE_ARG1(registers)              ((void *)(registers)->regs[1])
#define KPROBE_ARG2(registers)              ((void *)(registers)->regs[2])
#define KPROBE_ARG3(registers)              ((void *)(registers)->regs[3])
#define KPROBE_ARG4(registers)              ((void *)(registers)->regs[4])
#define KPROBE_ARG5(registers)              ((void *)(registers)->regs[5])
#define KPROBE_ARG6(registers)              ((void *)(registers)->regs[6])
/* A struct of more than 16 bytes is passed by its address. */
#define KPROBE_STRUCT2(registers)           KPROBE_ARG2(registers)
#define KPROBE_ARG_AFTER_STRUCT2(registers) KPROBE_ARG3(registers)

#endif

#endif
