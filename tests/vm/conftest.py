"""One guest for each kernel and session: booting is dear, so all tests of a kernel share it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from testbed.machines.packages import Missing
from tests.vm import kernels, record
from tests.vm.guest import Guest, gpu_slot, idle_card, nvme_drive, plugged_card
from tests.vm.sensing import HOLD, INJECT, SAY, Observer

GPU = "0000:5d:00.0"
PORT = "0000:5c:00.0"
CARD, CARD_PORT = "0000:6d:00.0", "0000:6c:00.0"
UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"
WANTED = os.environ.get("KCOVER_VM_KERNELS", kernels.DEFAULT.name).split()
CHOSEN = [kernel for kernel in kernels.KERNELS if kernel.name in WANTED]
if unknown := set(WANTED) - {kernel.name for kernel in CHOSEN}:
    raise pytest.UsageError(f"KCOVER_VM_KERNELS: no kernel {', '.join(sorted(unknown))}")
needs_driver = pytest.mark.usefixtures("driver")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(2400))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    record.take(item, report)
    return report


@pytest.fixture(scope="session", params=CHOSEN, ids=lambda kernel: kernel.name)
def prepared(request: pytest.FixtureRequest) -> kernels.Prepared:
    if not shutil.which("qemu-system-x86_64"):
        pytest.skip("needs qemu: apt-get install qemu-system-x86 busybox-static pciutils")
    try:
        return kernels.prepared(request.param)
    except Missing as reason:
        pytest.skip(f"needs kernel {request.param.name}: {reason}")


@pytest.fixture(scope="session")
def guest(prepared: kernels.Prepared) -> Iterator[Guest]:
    devices = [*gpu_slot(), *idle_card(), *plugged_card(), *nvme_drive()]
    with Guest(prepared, devices=devices) as machine:
        teach(machine)
        yield machine


def teach(guest: Guest) -> None:
    """Its agent can `say` what the driver does, and `inject` PCIe errors.

    Kernels before 6.0 leave an endpoint's error reporting off.
    """
    guest.python(SAY + INJECT)
    guest.shell("modprobe virtio_rng; modprobe aer_inject")
    shown = "[ ! -e /sys/bus/pci/devices/$d ] || setpci -s $d CAP_EXP+08.w=000f:000f"
    guest.shell(f"for d in {GPU} {PORT} {CARD} {CARD_PORT}; do {shown}; done")


@pytest.fixture(scope="session")
def steady_guest(prepared: kernels.Prepared) -> Iterator[Guest]:
    """For what depends on time: with the driver, and without a message about the host's load."""
    stub = stub_of(prepared)
    with Guest(prepared, devices=gpu_slot(), steady=True) as machine:
        insert_driver(machine, stub)
        teach(machine)
        yield machine


@pytest.fixture(scope="session")
def driver(guest: Guest, prepared: kernels.Prepared) -> kernels.Prepared:
    """The stub driver is loaded."""
    insert_driver(guest, stub_of(prepared))
    return prepared


def stub_of(prepared: kernels.Prepared) -> Path:
    """The stub driver; skips where it cannot be built."""
    if prepared.stub is None:
        pytest.skip(f"needs a stub driver for {prepared.version}: {prepared.why_no_stub}")
    return prepared.stub


def insert_driver(guest: Guest, stub: Path, options: str = "") -> None:
    uvm = stub.with_name("nvidia-uvm.ko")
    guest.shell(f"[ -e /sys/module/nvidia ] || {{ insmod {stub} {options}; insmod {uvm}; }}")


@pytest.fixture(scope="module")
def observer(guest: Guest, prepared: kernels.Prepared) -> Iterator[Observer]:
    """With one member process, which holds the GPU where there is a driver for it."""
    guest.shell("modprobe ib_core")
    members = []
    if prepared.stub is not None:
        insert_driver(guest, prepared.stub)
        members.append(guest.start("/usr/bin/python3", "-c", HOLD, log="/share/member.log"))
    watching = Observer(guest, members)
    yield watching
    watching.close()
    for member in members:
        guest.run("/bin/kill", str(member))
