"""All GPUs of the node reduce a buffer together: right values, and fast enough."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kcover_ebpf.inspection import commands, pci
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown

_GET = "build github.com/NVIDIA/nccl-tests and put all_reduce_perf on the PATH"
_BUFFER = "512M"
"""Large enough for the full bandwidth of NVLink; reduced in milliseconds."""
_BANDWIDTH = re.compile(r"Avg bus bandwidth\s*:\s*(\d{1,9}(?:\.\d{1,9})?)")
_WRONG = re.compile(r"Out of bounds values\s*:\s*(\d{1,18})")


def find(options: InspectionOptions) -> Iterator[CheckFinding]:
    """One finding."""
    count = max(len(pci.nvidia_gpus(options.root)), 1)
    ran = commands.run(["all_reduce_perf", "-b", _BUFFER, "-e", _BUFFER, "-g", str(count)])
    if ran is None:
        yield unknown("all_reduce_perf is not on the PATH", _GET)
        return
    wrong, speed = _WRONG.search(ran.output), _BANDWIDTH.search(ran.output)
    if wrong and int(wrong[1]):
        text = f"{wrong[1]} wrong value(s): a GPU or a link corrupts data"
        yield failed(text, "drain the node and run dcgmi diag --run 3")
    elif ran.exit_code or not speed:
        text = f"all_reduce_perf ended with code {ran.exit_code}: {ran.first_line}"
        yield failed(text, "run it by hand with NCCL_DEBUG=INFO")
    else:
        yield _compared(float(speed[1]), count, options.nccl_floor_gb_s)


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
    "an all-reduce over all GPUs gives right values, at the bandwidth of `--nccl-floor` at least",
    "`all_reduce_perf`",
    find,
)
