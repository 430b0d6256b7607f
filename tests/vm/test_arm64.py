"""The sensor on arm64, emulated: its programs load and sample, a stopped rank is named, hardware fails.

`make test-vm-arm64`. No kernel module is built for arm64, so what the stub driver shows on x86-64 is not
shown here: what an Xid does, which process holds a GPU.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from kcover_ebpf.kernel.probes import Refusal
from testbed.machines.packages import ROOT, Missing
from tests.vm import kernels
from tests.vm.guest import PYTHON, Guest
from tests.vm.sensing import INJECT, Observer, Run, ended, of_kind, trains

_COMPILER = "aarch64-linux-gnu-gcc"
# A machine without ACPI describes one bus to the kernel; the endpoint is behind a root port on it.
SLOT = (
    *("-device", "pcie-root-port,id=gpu-port,bus=pcie.0,slot=1,chassis=1"),
    *("-device", "virtio-rng-pci,aer=on,id=gpu,bus=gpu-port"),
)
GPU = "0000:01:00.0"
JOB = f"/usr/bin/python3 {ROOT}/tests/vm/job.py"
LAUNCH = (
    f"export JOB_GPU= WORLD_SIZE=2; for r in 0 1; do RANK=$r LOCAL_RANK=$r {JOB} $r & done; wait"
)
# The walk needs 6.7; machine checks are of x86.
_NO_HOOK = {"walk_threads", "on_machine_check"}


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    for tool, package in (
        ("qemu-system-aarch64", "qemu-system-arm"),
        (_COMPILER, "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"),
    ):
        if not shutil.which(tool):
            pytest.skip(f"needs {tool}: apt-get install {package}")
    try:
        prepared = kernels.prepared(kernels.ARM64)
    except Missing as reason:
        pytest.skip(f"needs a kernel for arm64: {reason}")
    with Guest(prepared, devices=SLOT) as machine:
        machine.python(INJECT)
        machine.shell("modprobe aer_inject; modprobe ib_core")
        yield machine


@pytest.fixture(scope="module")
def programs(guest: Guest) -> str:
    """Where the guest has the fault programs: it has no compiler."""
    for name in ("crowd", "exits", "handled", "hog", "repeat", "waits", "works"):
        source = ROOT / "testbed" / "faults" / f"{name}.c"
        # signed return addresses, as current distributions build all their programs
        words = ("-O1", "-pthread", "-static", "-mbranch-protection=standard")
        target = str(guest.share / name)
        subprocess.run([_COMPILER, *words, "-o", target, str(source)], check=True, timeout=60)
    return "/share"


@pytest.fixture(scope="module")
def observer(guest: Guest) -> Iterator[Observer]:
    member = guest.start("/bin/sleep", "36000", log="/dev/null")
    watching = Observer(guest, [member])
    yield watching
    watching.close()


def test_every_program_with_a_hook_in_this_kernel_is_attached(guest: Guest) -> None:
    doctor = PYTHON.replace("python", "kcover-ebpf")
    done = guest.run(doctor, "doctor", "-o", "json", timeout_s=600)
    probes = json.loads(done.output)["probes"]
    refused = {probe["probe"]: probe["refusal"] for probe in probes if not probe["attached"]}
    absent = {Refusal.NO_DRIVER, Refusal.NO_LIBRARY}
    assert {probe for probe, why in refused.items() if why not in absent} == _NO_HOOK
    assert {"sample_threads", "on_rdma", "on_aer"} <= {probe["probe"] for probe in probes}


@pytest.mark.parametrize(
    ("module", "chosen"),
    [
        # to stop costs a thread more CPU here, where it is emulated, than a thread at rest may use
        ("test_threads", "visits and not stopped_and_continued"),
        ("test_totals", "visits"),
        ("test_sampler", ""),
        ("test_lifecycle", ""),
        # before Linux 6.7 an iterator over the files of a process stops at a first thread that has ended
        # (kernel/bpf/task_iter.c: task_group_seq_get_next)
        ("test_sockets", "not outlive_the_first_thread"),
    ],
)
def test_the_kernel_tests_pass(guest: Guest, programs: str, module: str, chosen: str) -> None:
    words = "-q -p testbed.skips -p no:cacheprovider -p no:xdist -p no:hypothesispytest --confcutdir=tests/kernel"
    tests = f"tests/kernel/{module}.py" + (f" -k '{chosen}'" if chosen else "")
    script = f"cd {ROOT}; KCOVER_FAULT_PROGRAMS={programs} {PYTHON} -m pytest {words} {tests}"
    done = guest.run("/bin/sh", "-c", script, timeout_s=1800)
    assert done.code == 0, done.output[-4000:]


def test_a_stopped_rank_is_named_and_the_job_ended(guest: Guest) -> None:
    run = Run(guest, "--act", "shutdown", launch=LAUNCH)
    run.wait(trains, "training")
    guest.shell("kill -STOP $(pgrep -f '[j]ob.py 1')")
    lines = run.wait(ended, "end")
    assert run.code() == 75
    verdict = next(line for line in lines if line.get("verdict") == "HUNG")
    assert (verdict["cause"], verdict["culprit"]["rank"]) == ("stopped", 1)
    assert guest.run("/usr/bin/pgrep", "-f", "tests/vm/job.py").output == ""


def test_pcie_errors(guest: Guest, observer: Observer) -> None:
    mark = observer.mark()
    guest.python(f"inject('{GPU}', 0, 0x40)")
    (fact,) = observer.facts("AerError", 1, mark)
    assert (fact["device"], fact["severity"], fact["count"]) == (GPU, 2, 1)
    assert fact["errors"] == ["Bad TLP"]


def test_an_rdma_port_that_goes_down_is_reported_by_a_kprobe(
    guest: Guest, observer: Observer
) -> None:
    assert observer.ready["probes"]["nic.on_rdma"] == ""
    guest.shell("modprobe rdma_rxe; ip link add wire0 type veth peer name wire1")
    guest.shell("ip link set wire0 up; ip link set wire1 up")
    guest.shell("rdma link add soft type rxe netdev wire0; sleep 3")
    mark = observer.mark()
    guest.shell("ip link set wire1 down; sleep 1")
    lines = observer.wait(
        lambda lines: any(x["port"] == "soft/1" for x in of_kind(lines, "PortChange")), mark
    )
    found = {(x["up"], x["text"]) for x in of_kind(lines, "PortChange") if x["port"] == "soft/1"}
    assert (False, "port down") in found
    guest.shell("ip link del wire0")
