/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The first arguments of a probed kernel function, as each architecture's calling convention has
 * them. */
#ifndef KCOVER_KPROBE_BPF_H
#define KCOVER_KPROBE_BPF_H

#include "kernel.h"

#if defined(__TARGET_ARCH_x86)

struct pt_regs___kprobe {
	unsigned long di;
	unsigned long si;
	unsigned long dx;
	unsigned long cx;
} __attribute__((preserve_access_index));

#define KPROBE_ARG0(regs) ((void *)(regs)->di)
#define KPROBE_ARG1(regs) ((void *)(regs)->si)
#define KPROBE_ARG2(regs) ((void *)(regs)->dx)
#define KPROBE_ARG3(regs) ((void *)(regs)->cx)

#elif defined(__TARGET_ARCH_arm64)

struct pt_regs___kprobe {
	__u64 regs[31];
} __attribute__((preserve_access_index));

#define KPROBE_ARG0(registers) ((void *)(registers)->regs[0])
#define KPROBE_ARG1(registers) ((void *)(registers)->regs[1])
#define KPROBE_ARG2(registers) ((void *)(registers)->regs[2])
#define KPROBE_ARG3(registers) ((void *)(registers)->regs[3])

#endif

#endif
