#!/usr/bin/env python3
# kcover-ebpf: cost=heavy deadline=180
"""All GPUs of the node reduce a buffer together: the values must be right, and the bus bandwidth high enough.

Runs `all_reduce_perf` of NVIDIA's nccl-tests, as installed on the node. `NCCL_FLOOR_GB_S` is the least bandwidth in
gigabytes (10^9 bytes) per second; if it is not set, no speed fails the node.
"""

import os
import re
import signal
import sys

from kcover_ebpf.devices.inventory import pci
from kcover_ebpf.host import cgroups
from kcover_ebpf.host.host_programs import host_root
from kcover_ebpf.inspection import commands
from kcover_ebpf.inspection.plugins import exit_code_of
from kcover_ebpf.inspection.result import CheckFinding

PASS, FAIL, UNKNOWN = 0, 1, 2
_TOOL = "all_reduce_perf"
BUFFER = "512M"
"""As in bandwidth/all_reduce.py: each of the two plug-ins is used without the other."""
BANDWIDTH = re.compile(r"Avg bus bandwidth\s*:\s*(\d{1,9}(?:\.\d{1,9})?)")
WRONG = re.compile(r"Out of bounds values\s*:\s*(\d{1,18})")
_GET = "build github.com/NVIDIA/nccl-tests, and put all_reduce_perf into /usr/local/bin of the node"
_MEMORY_BYTES = 1 << 30
"""Host memory per GPU, for its CUDA context and NCCL's buffers; an estimate that was never measured."""
_ROOM = "raise agent.resources.limits.memory, or run kcover-ebpf inspect on the node itself"


def examine(floor: str) -> tuple[int, str]:
    """Exit code and evidence; `floor`: a number, or empty."""
    try:
        floor_gb_s = float(floor or 0)
    except ValueError:
        return UNKNOWN, f"NCCL_FLOOR_GB_S is {floor[:40]!r}, and should be a number"
    root = host_root()
    count = max(len(pci.nvidia_gpus(root)), 1)
    if commands.is_installed(_TOOL, root) and (lack := lack_of_memory(count)):
        return UNKNOWN, lack
    ran = commands.run_tool([_TOOL, "-b", BUFFER, "-e", BUFFER, "-g", str(count)], root, _GET)
    if isinstance(ran, CheckFinding):
        return UNKNOWN, f"{ran.evidence}; {ran.advice}"
    return judged(ran, count, floor_gb_s)


def judged(ran: commands.Ran, count: int, floor_gb_s: float) -> tuple[int, str]:
    """Exit code and evidence from the output of a run with `count` GPUs; a floor of 0 means no floor."""
    wrong, speed = WRONG.search(ran.output), BANDWIDTH.search(ran.output)
    if wrong and int(wrong[1]):
        return FAIL, f"{wrong[1]} wrong value(s): a GPU or a link corrupts data"
    if ran.exit_code == -signal.SIGKILL:
        return UNKNOWN, f"{_TOOL} was killed, as it is for lack of memory; {_ROOM}"
    if ran.exit_code or not speed:
        return FAIL, f"{_TOOL} ended with code {ran.exit_code}: {ran.first_line}"
    text = f"bus bandwidth of {count} GPU(s): {float(speed[1]):g} GB/s"
    if not floor_gb_s:
        return PASS, f"{text}; no floor was given (NCCL_FLOOR_GB_S)"
    if float(speed[1]) < floor_gb_s:
        return FAIL, f"{text}, below the floor of {floor_gb_s:g}"
    return PASS, f"{text}, floor {floor_gb_s:g}"


def lack_of_memory(count: int) -> str:
    """Why `count` GPUs cannot be tested here, or "": the agent is killed with its container at its limit."""
    limit, needed = cgroups.memory_limit_bytes(), count * _MEMORY_BYTES
    if limit is None or limit >= needed:
        return ""
    text = f"not run: {count} GPU(s) need {needed >> 20} MiB of memory, we may use {limit >> 20}"
    return f"{text}; {_ROOM}"


if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: examine(os.environ.get("NCCL_FLOOR_GB_S", ""))))
