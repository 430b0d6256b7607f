"""Reads the GPUs, a line of JSON each period: `python -m kcover_ebpf.devices.telemetry.helper OPTIONS`.

A separate program, because a call into the driver may hang where no signal reaches it: then it is left behind. It
ends once its lines are no longer read.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import field
from pathlib import Path

from kcover_ebpf.api.codec import decode, encode, wire
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.inventory import topology
from kcover_ebpf.devices.telemetry.reading import GpuReading
from kcover_ebpf.errors import CannotObserve
from kcover_ebpf.tunables.devices import TELEMETRY_NICENESS


@dataclass(frozen=True, slots=True)
class HelperOptions:
    """What is to be read."""

    period_s: float
    dcgm: str = ""
    """URL of a dcgm-exporter; empty: NVML."""
    root: str = "/"
    """Where the host's files are."""

    def argv(self) -> list[str]:
        """The command."""
        return [sys.executable, "-m", __name__, json.dumps(encode(self))]


@dataclass(frozen=True, slots=True)
class TelemetryLine:
    """What is printed: readings, or what was wrong with all of them."""

    gpus: tuple[GpuReading, ...]
    trouble: str
    cpu_s: float = field(metadata=wire("cpu_seconds"))
    """CPU time of the helper so far."""


def reader_of(options: HelperOptions) -> Callable[[], list[GpuReading]]:
    """What reads all GPUs; raises `CannotObserve`. May hang."""
    root = Path(options.root)
    if options.dcgm:
        from kcover_ebpf.devices.telemetry.dcgm_source import DcgmSource

        own = [gpu.uuid for gpu in topology.read(root).gpus if gpu.uuid]
        return DcgmSource(options.dcgm, own).readings
    try:
        import pynvml
    except ImportError as error:
        text = "the package nvidia-ml-py is not installed (pip install kcover-ebpf[gpu])"
        raise CannotObserve(text) from error
    from kcover_ebpf.devices.telemetry.nvml_source import NvmlSource

    try:
        return NvmlSource(pynvml, root, options.period_s).readings
    except pynvml.NVMLError_LibraryNotFound as error:
        raise CannotObserve("libnvidia-ml.so.1 not found") from error
    except pynvml.NVMLError as error:
        raise CannotObserve(f"NVML: {error}") from error


def line_of(read: Callable[[], list[GpuReading]]) -> TelemetryLine:
    """Read once."""
    failure, found = "", []
    try:
        found = read()
    except (OSError, ValueError) as error:
        failure = f"dcgm-exporter: {error}"
    return TelemetryLine(tuple(found), failure, time.process_time())


def main(arguments: list[str]) -> int:
    """Print until the reader is gone; the exit code."""
    options = decode(HelperOptions, json.loads(arguments[0]))
    os.nice(TELEMETRY_NICENESS)
    try:
        read = reader_of(options)
    except CannotObserve as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    due_s = time.monotonic()
    while True:
        # the first after a moment: NVML's threads have read by then
        due_s = max(due_s + options.period_s, time.monotonic())
        time.sleep(min(due_s - time.monotonic(), options.period_s))
        try:
            sys.stdout.write(json.dumps(encode(line_of(read))) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            return 0


if __name__ == "__main__":
    # threads that hang in a driver must not keep the program
    os._exit(main(sys.argv[1:]))
