"""All GPUs of the node reduce a buffer together: right values, and fast enough."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from kcover_ebpf.devices.inventory import pci
from kcover_ebpf.host import cgroups
from kcover_ebpf.inspection import commands
from kcover_ebpf.inspection.bandwidth.all_reduce import BANDWIDTH, BUFFER, WRONG
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown

_TOOL = "all_reduce_perf"
_GET = "build github.com/NVIDIA/nccl-tests, and put all_reduce_perf into /usr/local/bin of the node"
_MEMORY_BYTES = 1 << 30
"""Of the host, for each GPU: its CUDA context, and NCCL's buffers. An estimate: it was never measured."""
_ROOM = "raise agent.resources.limits.memory, or run kcover-ebpf inspect on the node itself"


def find(options: InspectionOptions) -> Iterator[CheckFinding]:
    """One finding."""
    count = max(len(pci.nvidia_gpus(options.root)), 1)
    if commands.is_installed(_TOOL, options.root) and (lack := _lack_of_memory(count)):
        yield lack
        return
    argv = [_TOOL, "-b", BUFFER, "-e", BUFFER, "-g", str(count)]
    ran = commands.run_tool(argv, options.root, _GET)
    if isinstance(ran, CheckFinding):
        yield ran
        return
    wrong, speed = WRONG.search(ran.output), BANDWIDTH.search(ran.output)
    if wrong and int(wrong[1]):
        text = f"{wrong[1]} wrong value(s): a GPU or a link corrupts data"
        yield failed(text, "drain the node and run dcgmi diag --run 3")
    elif ran.exit_code == -signal.SIGKILL:
        yield unknown("all_reduce_perf was killed, as it is for lack of memory", _ROOM)
    elif ran.exit_code or not speed:
        text = f"all_reduce_perf ended with code {ran.exit_code}: {ran.first_line}"
        yield failed(text, "run it by hand with NCCL_DEBUG=INFO")
    else:
        yield _compared(float(speed[1]), count, options.nccl_floor_gb_s)


def _lack_of_memory(count: int) -> CheckFinding | None:
    """A container that exceeds its limit is killed as a whole: the agent too."""
    limit, needed = cgroups.memory_limit_bytes(), count * _MEMORY_BYTES
    if limit is None or limit >= needed:
        return None
    text = f"not run: {count} GPU(s) need {needed >> 20} MiB of memory, we may use {limit >> 20}"
    return unknown(text, _ROOM)


def _compared(speed: float, count: int, floor: float | None) -> CheckFinding:
    text = f"bus bandwidth of {count} GPU(s): {speed:g} GB/s"
    if floor is None:
        return passed(f"{text}; no floor was given (--nccl-floor)")
    if speed < floor:
        return failed(f"{text}, below the floor of {floor:g}", "check NVLink and PCIe (nvml, pcie)")
    return passed(f"{text}, floor {floor:g}")


CHECK = Check(
    "nccl_tests",
    Cost.HEAVY,
    180.0,
    "an all-reduce over all GPUs gives correct results at no less than the bandwidth of `--nccl-floor`",
    "`all_reduce_perf`",
    find,
)
