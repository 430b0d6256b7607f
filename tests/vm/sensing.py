"""The sensor inside a guest, seen from the host: its device half alone, or `kcover-ebpf run`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kcover_ebpf.devices.catalog.files import shipped
from kcover_ebpf.logs import rules
from kcover_ebpf.logs.lines import Source
from kcover_ebpf.logs.reader import LogReader
from testbed.machines.packages import ROOT
from tests.vm.guest import PYTHON, Guest

Line = dict[str, Any]
Lines = list[Line]
Figure = Callable[[str, object], None]
"""What notes something that a test measured: pytest's `record_property`."""

KCOVER = str(ROOT / ".venv/bin/kcover-ebpf")
# what emulation takes here grows tenfold on a busy machine
PATIENCE_S = 900.0

# --- programs that run in the guest

SAY = """
import time
def say(command):
    begun = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    with open("/proc/driver/nvidia/stub", "w") as stub:
        stub.write(command)
    print(begun)
"""
INJECT = """
import struct, time
def inject(bdf, uncorrected, corrected, times=1, pause_s=0.0):
    domain, bus, rest = bdf.split(":")
    slot, function = rest.split(".")
    record = struct.pack("<BBBxIIIIIII", int(bus, 16), int(slot, 16), int(function),
                         uncorrected, corrected, 1, 2, 3, 4, int(domain, 16))
    with open("/dev/aer_inject", "wb", buffering=0) as device:
        for _ in range(times):
            device.write(record)
            if pause_s:
                time.sleep(pause_s)
"""
HOLD = """
import fcntl, os, struct, sys, time
gpu = os.open("/dev/nvidia0", os.O_RDWR)
instance = os.open("/dev/nvidia-caps/nvidia-cap200", os.O_RDONLY)
uvm = os.open("/dev/nvidia-uvm", os.O_RDWR)
fcntl.ioctl(uvm, 37, bytes.fromhex("00112233445566778899aabbccddeeff") + bytes(24))
time.sleep(3600)
"""


def of_kind(lines: Lines, kind: str) -> Lines:
    """The facts of one kind."""
    return [line for line in lines if line.get("fact") == kind]


def whole_lines(file: Path) -> Lines:
    """The JSON lines written so far; the last may still be growing."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().rpartition("\n")[0].splitlines()]


def _tail(file: Path) -> str:
    return file.read_text()[-2000:] if file.exists() else "no log"


class Observer:
    """The sensor's device half inside a guest, reported by its facts."""

    def __init__(self, guest: Guest, members: list[int], *options: str) -> None:
        self._file = guest.share / f"facts-{time.monotonic_ns()}"
        self._log = guest.share / "observer.log"
        self._guest = guest
        self.member = members[0] if members else 0
        """The process that holds the GPU."""
        inside = f"/share/{self._file.name}"
        arguments = [*options, *map(str, members)]
        self.pid = guest.start(
            *("/usr/bin/env", "-C", str(ROOT), "PYTHONPATH=."),
            *(PYTHON, "-m", "tests.vm.observer", inside, *arguments),
            log="/share/observer.log",
        )
        self.ready = self.wait(bool)[0]

    def lines(self) -> Lines:
        """Everything it wrote so far."""
        return whole_lines(self._file)

    def wait(self, enough: Callable[[Lines], bool], after: int = 0) -> Lines:
        """Its lines from number `after` on, once they are enough; fails when its patience ends."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            lines = self.lines()[after:]
            if enough(lines):
                return lines
            if time.monotonic() > deadline:
                last = "\n".join(map(str, lines[-8:]))
                pytest.fail(f"not enough facts: {_tail(self._log)}\n{last}", pytrace=False)
            time.sleep(0.05)

    def mark(self) -> int:
        """How many lines there are; what comes next is new. Waits for a whole quiet pass."""
        seen = len(self.lines())
        self.wait(lambda lines: sum("cpu_s" in line for line in lines) >= 2, seen)
        return len(self.lines())

    def facts(self, kind: str, count: int, after: int) -> Lines:
        """The facts of one kind since a mark, once there are `count` and a quiet pass followed."""

        def enough(lines: Lines) -> bool:
            found = [i for i, line in enumerate(lines) if line.get("fact") == kind]
            if len(found) < count:
                return False
            return sum("cpu_s" in line for line in lines[found[count - 1] :]) >= 3

        return of_kind(self.wait(enough, after), kind)

    def close(self) -> None:
        """End it."""
        self._guest.run("/bin/kill", str(self.pid))
        self._guest.shell(f"while [ -e /proc/{self.pid}/exe ]; do sleep 0.1; done")


_INSPECT = """
import json, subprocess, sys, time
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.registry import chosen
from kcover_ebpf.inspection.result import joined
name, meanwhile = sys.argv[1:]
def pause(seconds):
    subprocess.run(meanwhile, shell=True, check=True)
    time.sleep(seconds)
(check,) = chosen([name], (), has_peers=False)
found = joined(name, check.find(InspectionOptions(pause=pause)))
print(json.dumps({"result": found.result.value, "evidence": found.evidence, "advice": found.advice}))
"""


def inspected(guest: Guest, check: str, meanwhile: str = "true") -> Line:
    """What one check of `kcover-ebpf inspect` finds in the guest: its result, evidence and advice.

    `meanwhile`: a shell command that is run while the check pauses between two readings.

    Without its deadline, which an emulated machine on a busy host misses.
    """
    done = guest.run("/usr/bin/env", "-C", str(ROOT), PYTHON, "-c", _INSPECT, check, meanwhile)
    if done.code:
        pytest.fail(f"inspect {check}: {done.output}", pytrace=False)
    return dict(json.loads(done.output.splitlines()[-1]))


def known_lines(guest: Guest) -> Lines:
    """What our rules know of the kernel's log since it was cleared (`dmesg -C`); forged lines are none of it.

    The rules are applied here, where that takes milliseconds and not seconds.
    """
    reader = LogReader(rules.load(None), shipped(), source=Source.KERNEL)
    return [asdict(match) for match in reader.feed(guest.shell("dmesg -x").encode())]


def logged_as(guest: Guest, rule: str) -> Line:
    """The first line that a rule knows, once the kernel has written one."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        lines = known_lines(guest)
        if found := [line for line in lines if line["rule"] == rule]:
            return found[0]
        if time.monotonic() > deadline:
            log = guest.shell("dmesg -x | tail -20")
            pytest.fail(f"no line of {rule}: {lines}\n{log}", pytrace=False)
        time.sleep(1.0)


class Run:
    """`kcover-ebpf run` in a guest, around a job that a shell line launches."""

    def __init__(self, guest: Guest, *options: str, launch: str) -> None:
        self._guest = guest
        self._out, self._code = guest.share / "run.json", guest.share / "run.code"
        for path in (self._out, self._code):
            path.unlink(missing_ok=True)
        script = (
            f"{KCOVER} run -o json {' '.join(options)} -- /bin/sh -c '{launch}' "
            "> /share/run.json 2> /share/run.log; echo $? > /share/run.code"
        )
        guest.start("/bin/sh", "-c", script, log="/dev/null")

    def lines(self) -> Lines:
        """What it wrote so far."""
        return whole_lines(self._out)

    def wait(self, found: Callable[[Lines], bool], what: str, after: int = 0) -> Lines:
        """Its lines from number `after` on, once `found` likes them."""
        deadline = time.monotonic() + PATIENCE_S
        while not found(self.lines()[after:]):
            if time.monotonic() > deadline:
                log = _tail(self._out.with_suffix(".log"))
                pytest.fail(f"no {what}: {self.lines()[-5:]} {log}", pytrace=False)
            time.sleep(0.1)
        return self.lines()[after:]

    def code(self) -> int:
        """Its exit code, once it ended."""
        self.wait(lambda _: self._code.exists() and bool(self._code.read_text().strip()), "end")
        return int(self._code.read_text())

    def end_job(self) -> None:
        """Kill the job, and wait for the end of the sensor: the next one writes files of the same names."""
        ranks = (
            r"^/usr/bin/python3 [^ ]*tests/vm/job\.py$"  # not the sensor, whose words hold theirs
        )
        self._guest.run("/usr/bin/pkill", "-KILL", "-f", ranks)
        self.code()


def trains(lines: Lines) -> bool:
    """The sensor has seen the job train."""
    return any(line.get("cause") == "training" for line in lines)


def ended(lines: Lines) -> bool:
    """The sensor has ended."""
    return any(line["event"] == "end" for line in lines)
