"""One guest for each kernel and session: booting is dear, so all tests of a kernel share it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vm import kernels
from tests.vm.guest import PYTHON, Guest, gpu_slot

GPU = "0000:5d:00.0"
PORT = "0000:5c:00.0"
UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"
WANTED = os.environ.get("KCOVER_VM_KERNELS", kernels.DEFAULT.name).split()
CHOSEN = [kernel for kernel in kernels.KERNELS if kernel.name in WANTED]
# what emulation takes here grows tenfold on a busy machine
PATIENCE_S = 300.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(2400))


class Observer:
    """The sensor's device half inside a guest, told by its facts."""

    def __init__(self, guest: Guest, members: list[int], *options: str) -> None:
        self._file = guest.share / f"facts-{time.monotonic_ns()}"
        self._log = guest.share / "observer.log"
        self._guest = guest
        self.member = members[0] if members else 0
        """The process that holds the GPU."""
        inside = f"/share/{self._file.name}"
        arguments = [*options, *map(str, members)]
        self.pid = guest.start(
            *("/usr/bin/env", "-C", str(kernels.ROOT), "PYTHONPATH=."),
            *(PYTHON, "-m", "tests.vm.observer", inside, *arguments),
            log="/share/observer.log",
        )
        self.ready = self.wait(bool)[0]

    def lines(self) -> list[dict[str, Any]]:
        """Everything it wrote so far."""
        if not self._file.exists():
            return []
        whole = self._file.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def wait(
        self, enough: Callable[[list[dict[str, Any]]], bool], after: int = 0
    ) -> list[dict[str, Any]]:
        """Its lines from number `after` on, once they are enough; fails when its patience ends."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            lines = self.lines()[after:]
            if enough(lines):
                return lines
            if time.monotonic() > deadline:
                log = self._log.read_text() if self._log.exists() else "no log"
                tail = "\n".join(map(str, lines[-8:]))
                pytest.fail(f"not enough facts: {log[-2000:]}\n{tail}", pytrace=False)
            time.sleep(0.05)

    def mark(self) -> int:
        """How many lines there are; what comes next is new. Waits for a whole quiet pass."""
        seen = len(self.lines())
        self.wait(lambda lines: sum("cpu_s" in line for line in lines) >= 2, seen)
        return len(self.lines())

    def facts(self, kind: str, count: int, after: int) -> list[dict[str, Any]]:
        """The facts of one kind since a mark, once there are `count` and a quiet pass followed."""

        def enough(lines: list[dict[str, Any]]) -> bool:
            found = [i for i, line in enumerate(lines) if line.get("fact") == kind]
            passes = (
                sum("cpu_s" in line for line in lines[found[count - 1] :] if found)
                if (len(found) >= count)
                else 0
            )
            return passes >= 3

        lines = self.wait(enough, after)
        return [line for line in lines if line.get("fact") == kind]

    def close(self) -> None:
        """End it."""
        self._guest.run("/bin/kill", str(self.pid))
        self._guest.shell(f"while [ -e /proc/{self.pid}/exe ]; do sleep 0.1; done")


@pytest.fixture(scope="session", params=CHOSEN, ids=lambda kernel: kernel.name)
def prepared(request: pytest.FixtureRequest) -> kernels.Prepared:
    if not shutil.which("qemu-system-x86_64"):
        pytest.skip("needs qemu: apt-get install qemu-system-x86 busybox-static pciutils")
    try:
        return kernels.prepared(request.param)
    except kernels.Missing as reason:
        pytest.skip(f"needs kernel {request.param.name}: {reason}")


@pytest.fixture(scope="module")
def guest(prepared: kernels.Prepared) -> Iterator[Guest]:
    with Guest(prepared, devices=gpu_slot()) as machine:
        machine.shell("modprobe virtio_rng; modprobe aer_inject")
        # kernels before 6.0 leave an endpoint's error reporting off
        machine.shell(f"for d in {GPU} {PORT}; do setpci -s $d CAP_EXP+08.w=000f:000f; done")
        yield machine


@pytest.fixture(scope="module")
def driver(guest: Guest, prepared: kernels.Prepared) -> kernels.Prepared:
    """The stand-in driver is loaded."""
    if prepared.stub is None:
        pytest.skip(f"needs headers and a compiler for {prepared.version}: no stand-in driver")
    insert_driver(guest, prepared.stub)
    return prepared


def insert_driver(guest: Guest, stub: Path) -> None:
    uvm = stub.with_name("nvidia-uvm.ko")
    guest.shell(f"[ -e /sys/module/nvidia ] || {{ insmod {stub}; insmod {uvm}; }}")


HOLD = """
import fcntl, os, struct, sys, time
gpu = os.open("/dev/nvidia0", os.O_RDWR)
instance = os.open("/dev/nvidia-caps/nvidia-cap200", os.O_RDONLY)
uvm = os.open("/dev/nvidia-uvm", os.O_RDWR)
fcntl.ioctl(uvm, 37, bytes.fromhex("00112233445566778899aabbccddeeff") + bytes(24))
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def observer(guest: Guest, prepared: kernels.Prepared) -> Iterator[Observer]:
    """With one member process, which holds the GPU where there is a driver for it."""
    guest.python("import os, time")
    guest.shell("modprobe ib_core")
    members = []
    if prepared.stub is not None:
        insert_driver(guest, prepared.stub)
        members.append(guest.start("/usr/bin/python3", "-c", HOLD, log="/share/member.log"))
    watching = Observer(guest, members)
    yield watching
    watching.close()
