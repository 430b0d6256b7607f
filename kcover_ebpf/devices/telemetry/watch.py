"""Runs the helper program that reads the GPUs, restarts it if needed, and publishes its readings.

Only one thread waits for the helper. A helper that prints nothing is killed. One that does not even exit then is
left behind, and no other is started before it has exited: a hanging driver costs one process, not one per restart.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

from kcover_ebpf.api.codec import decode
from kcover_ebpf.confined import helper
from kcover_ebpf.confined.helper import Helper
from kcover_ebpf.dataclass import dataclass
from kcover_ebpf.devices.inventory.gpu_vendors import Gpu
from kcover_ebpf.devices.telemetry import use
from kcover_ebpf.devices.telemetry.helper import HelperOptions, TelemetryLine
from kcover_ebpf.devices.telemetry.holders import GpuHolders, seen_by
from kcover_ebpf.devices.telemetry.use import GpuState
from kcover_ebpf.errors import ObjectError
from kcover_ebpf.facts.devices import GpuSeen
from kcover_ebpf.host.open_files import OpenFiles
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.devices import (
    DCGM_PERIOD_S,
    TELEMETRY_AGAIN_S,
    TELEMETRY_FIRST_S,
    TELEMETRY_REAP_S,
    TELEMETRY_SILENT_PERIODS,
    TELEMETRY_SILENT_S,
)

_MOST_BYTES = 1 << 20
"""Most bytes of a line; longer ones are refused. Sixteen GPUs need 20 kB."""
_DRIVER = Path("sys/module/nvidia")


@dataclass(frozen=True, slots=True)
class TelemetryOptions:
    """How GPUs are read, as the operator configured it."""

    period_s: float
    dcgm: str = ""
    """URL of a dcgm-exporter to read instead of NVML; empty: NVML."""
    root: Path = Path("/")
    """Root folder of the host's files, which contain NVML's library."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The latest readings, and the state of the helper."""

    gpus: tuple[GpuState, ...] = ()
    trouble: str = "not begun"
    """Why there are no readings; empty while readings arrive."""
    read_s: float | None = None
    """When the last readings arrived (CLOCK_MONOTONIC); None before the first."""
    cpu_s: float = 0.0
    """CPU seconds of all helpers so far."""


class GpuTelemetry:
    """A thread and its helper. `tick` never waits; any thread may read `latest`."""

    def __init__(
        self,
        options: TelemetryOptions,
        gpus: Callable[[], Iterable[Gpu]],
        files: OpenFiles,
        root: Path = Path("/"),
        again_s: float = TELEMETRY_AGAIN_S,
    ) -> None:
        """`gpus`: the GPUs that the driver lists, without waiting; `files`: which processes have their files open.

        `root`: the root of our own /proc and /sys. `again_s`: pause before a new helper.
        """
        self._options, self._root, self._again_s = options, root, again_s
        self._period_s = max(options.period_s, DCGM_PERIOD_S) if options.dcgm else options.period_s
        self._holders = GpuHolders(gpus, files)
        self._members: Collection[Pid] = ()
        self._found: SimpleQueue[GpuSeen] = SimpleQueue()
        self._over = threading.Event()
        self._helper: Helper | None = None
        self._states: dict[str, GpuState] = {}
        self._cpu_before_s = 0.0
        self._serials: dict[str, str] = {}
        self.latest = Telemetry()
        self._thread = threading.Thread(target=self._work, name="kcover-gpus", daemon=True)
        """Started at the first `tick`, so that the thread has none of the privileges that were
        dropped before."""

    def tick(self, members: Collection[Pid]) -> Iterator[GpuSeen]:
        """Readings since the last call, for the GPUs of each of `members`; later readings cover `members` too."""
        self._members = tuple(members)
        if self._thread.ident is None:
            self._thread.start()
        with contextlib.suppress(Empty):
            while True:
                yield self._found.get_nowait()

    def serial_of(self, device: str) -> str:
        """Serial number of the board at a PCI address, also after the GPU was lost; empty if it was never read."""
        return self._serials.get(device, "")

    def close(self) -> None:
        """End the helper; one that hangs is left behind."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(2 * TELEMETRY_REAP_S)

    def _work(self) -> None:
        while not self._over.is_set():
            if reason := self._why_not():
                self._say(reason)
            else:
                self._say(self._run())
            self._over.wait(self._again_s)

    def _why_not(self) -> str:
        if self._helper is not None and self._helper.exit_code is None:
            return f"process {self._helper.pid} hangs in the driver"
        self._helper = None
        is_there = self._options.dcgm or (self._root / _DRIVER).exists()
        return "" if is_there else "no GPU driver is loaded"

    def _say(self, failure: str) -> None:
        known_telemetry = self.latest
        self._states.clear()
        self.latest = Telemetry((), failure, known_telemetry.read_s, known_telemetry.cpu_s)

    def _run(self) -> str:
        """Run one helper until it ends or hangs; returns why it did."""
        options = self._options
        wanted_options = HelperOptions(self._period_s, options.dcgm, str(options.root))
        try:
            # it reads nothing that a tenant wrote, and needs the devices
            running = helper.start(wanted_options.argv(), None, session=True)
        except OSError as error:
            return f"the helper cannot be started: {error.strerror}"
        self._cpu_before_s = self.latest.cpu_s
        try:
            reason = self._follow(running)
        finally:
            if not running.end(TELEMETRY_REAP_S):
                self._helper = running
        return reason

    def _follow(self, running_helper: Helper) -> str:
        pipe, rest = running_helper.stdout, b""
        due_s = time.monotonic() + TELEMETRY_FIRST_S
        while not self._over.is_set():
            ready, _, _ = select.select([pipe], [], [], 0.5)
            if not ready and time.monotonic() > due_s:
                return "the driver does not answer" if not self._options.dcgm else "no answer"
            if not ready:
                continue
            block = os.read(pipe, _MOST_BYTES)
            *lines, rest = (rest + block).split(b"\n")
            if not block or len(rest) > _MOST_BYTES:
                return running_helper.last_words() or "the helper ended"
            for line in lines:
                if not self._take(line):
                    # e.g. the package was updated while this program runs
                    return "the helper's lines cannot be read: it is of another version"
                due_s = time.monotonic() + max(
                    TELEMETRY_SILENT_S, TELEMETRY_SILENT_PERIODS * self._period_s
                )
        return "ended"

    def _take(self, line: bytes) -> bool:
        """Publish a line; False if it has another form."""
        try:
            line_read = decode(TelemetryLine, json.loads(line))
        except (ValueError, RecursionError, ObjectError):
            return False
        readings, fresh = line_read.gpus, []
        for reading in readings:
            if reading.serial:
                self._serials[reading.device] = reading.serial
            before = self._states.get(reading.gpu)
            if before is not None and before.reading == reading:
                continue
            if reading.boottime_ns:
                fresh.append(reading.gpu)
            self._states[reading.gpu] = use.after(before, reading)
        gone = self._states.keys() - {gpu_reading.gpu for gpu_reading in readings}
        for gpu in gone:
            del self._states[gpu]
        read_s = time.monotonic() if readings else self.latest.read_s
        cpu_s = line_read.cpu_s + self._cpu_before_s
        self.latest = Telemetry(tuple(self._states.values()), line_read.trouble, read_s, cpu_s)
        # values of an exporter may be half a minute old, so they are not signs of progress
        if not self._options.dcgm and fresh:
            self._hand_on([self._states[gpu] for gpu in fresh])
        return True

    def _hand_on(self, states: list[GpuState]) -> None:
        used = self._holders.of(self._members, states, time.monotonic())
        for pid, gpus in used.items():
            self._found.put(seen_by(pid, gpus))
