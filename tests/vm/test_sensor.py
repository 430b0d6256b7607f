"""The whole sensor in a guest: what ends the local job that holds the device, and what does not.

Its times are of a guest whose clock is the host's: on a busy host they say nothing.
"""

from __future__ import annotations

import time

import pytest

from testbed.machines.packages import ROOT
from tests.vm import kernels
from tests.vm.conftest import GPU, needs_driver
from tests.vm.guest import RDMA_UP, Guest
from tests.vm.sensing import Figure, Line, Lines, Run, ended, of_kind, trains

LAUNCH = (
    "for r in 0 1; do RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 "
    f"/usr/bin/python3 {ROOT}/tests/vm/job.py & done; wait"
)
HARMLESS = (63, 31)
"""Handled by the hardware; an application's own fault."""
LOST = f"say('xid 79 {GPU} GPU has fallen off the bus.')"
MALFORMED = f"print(time.clock_gettime_ns(7)); inject('{GPU}', 0x40000, 0)"


@pytest.fixture
def job(guest: Guest, driver: kernels.Prepared) -> Run:
    """Two ranks that train, rank 0 on the GPU; the sensor beside them may end them."""
    return training(guest)


def training(guest: Guest, *options: str, launch: str = LAUNCH) -> Run:
    run = Run(guest, "--act", "shutdown", *options, launch=launch)
    run.wait(trains, "training")
    return run


def verdict_of(lines: Lines, kind: str) -> Line:
    (verdict,) = [line for line in lines if line.get("verdict") == kind]
    return verdict


def assert_ended_by(run: Run, guest: Guest, fatal: str, evidence: str, note: Figure) -> None:
    """Cause it: verdict and shutdown follow; both latencies are noted."""
    begun_s = int(guest.python(fatal)) / 1e9
    offset_s = float(guest.python("print(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))"))
    verdict, acted = assert_ended(run, guest, GPU, evidence)
    note("to_verdict_ms", round((verdict["time"] - begun_s - offset_s) * 1e3))
    note("to_shutdown_ms", round((acted["time"] - begun_s - offset_s) * 1e3))


def assert_ended(run: Run, guest: Guest, device: str, evidence: str) -> tuple[Line, Line]:
    """The verdict that names the device, and the shutdown, after which nothing of the job is left."""
    lines = run.wait(ended, "end")
    assert run.code() == 75
    assert guest.run("/usr/bin/pgrep", "-f", "tests/vm/job.py").output == ""
    verdict = verdict_of(lines, "DEVICE_FAULT")
    assert verdict["cause"] == "device"
    assert verdict["culprit"]["device"] == device
    assert verdict["culprit"]["rank"] == 0
    assert evidence in verdict["evidence"][0]["text"]
    return verdict, next(line for line in lines if line["event"] == "action")


@pytest.mark.family("sensor")
def test_of_several_xids_the_fatal_one_ends_the_job_that_holds_the_gpu(
    guest: Guest, job: Run, record_property: Figure
) -> None:
    for number in HARMLESS:
        guest.python(f"say('xid {number} {GPU} harmless'); time.sleep(3)")
    before = job.wait(lambda lines: len(of_kind(lines, "xid_reported")) == 2, "harmless Xids")
    assert [line["number"] for line in of_kind(before, "xid_reported")] == list(HARMLESS)
    assert not [line for line in before if line.get("verdict") == "DEVICE_FAULT"]
    assert_ended_by(job, guest, LOST, f"Xid 79 on {GPU} (GPU lost on PCIe", record_property)


@pytest.mark.family("sensor")
def test_a_fatal_pcie_error_ends_the_job_that_holds_the_gpu(
    guest: Guest, job: Run, record_property: Figure
) -> None:
    assert_ended_by(job, guest, MALFORMED, f"PCIe fatal error of {GPU}: ", record_property)


@pytest.mark.family("sensor")
@needs_driver
def test_an_xid_that_the_operator_calls_fatal(guest: Guest, record_property: Figure) -> None:
    (guest.share / "own.toml").write_text('[xid.63]\nsurvival = "no"\nmeaning = "our word"\n')
    job = training(guest, "--catalog", "/share/own.toml")
    fatal = f"say('xid {HARMLESS[0]} {GPU} harmless elsewhere')"
    assert_ended_by(job, guest, fatal, f"Xid 63 on {GPU} (our word)", record_property)


@pytest.mark.family("sensor")
def test_an_rdma_port_that_stays_down(guest: Guest, record_property: Figure) -> None:
    """It is forgiven when it is up again soon, and ends no job that continues without it."""
    guest.shell(RDMA_UP)
    run = training(guest, launch=f"export JOB_GPU=/dev/infiniband/uverbs0; {LAUNCH}")
    guest.monitor("set_link idle off")
    time.sleep(2)  # the host's: a busy guest may take longer than a port is waited for
    guest.monitor("set_link idle on")
    lines = run.wait(lambda lines: is_up(lines) or ended(lines), "port that is up again")
    assert is_up(lines)
    begun_s = float(guest.python("import time; print(time.time())"))
    guest.monitor("set_link idle off")
    lines = run.wait(lambda lines: is_lost(lines) or ended(lines), "port that is given up")
    guest.monitor("set_link idle on")
    assert is_lost(lines)
    record_property(
        "to_fault_s", round(float(guest.python("import time; print(time.time())")) - begun_s, 1)
    )
    mark = len(run.lines())
    time.sleep(5)
    assert not ended(run.lines()[mark:])
    assert not [line for line in run.lines() if line.get("verdict") == "DEVICE_FAULT"]
    run.end_job()


def is_lost(lines: Lines) -> bool:
    """The RDMA port stayed down for longer than it is waited for."""
    return any("has not recovered for" in x["text"] for x in of_kind(lines, "device_fault"))


def is_up(lines: Lines) -> bool:
    """The RDMA port was ordered to be up."""
    return any(x["up"] for x in of_kind(lines, "port_change") if x["port"] == "plug/1")


def stuck(lines: Lines) -> bool:
    return any(line.get("cause") == "driver_stuck" for line in lines)


@pytest.mark.family("stuck")
@needs_driver
def test_a_driver_call_that_hangs(guest: Guest, record_property: Figure) -> None:
    """The rank sits in an ioctl in state D: no signal ends it, and the GPU is named."""
    run = Run(guest, "--for", "200s", launch=f"export JOB_STUCK=400; {LAUNCH}")
    lines = run.wait(stuck, "driver call")
    verdict = next(line for line in lines if line.get("cause") == "driver_stuck")
    (call,) = of_kind(lines, "driver_call")
    record_property("to_verdict_s", round(verdict["time"] - verdict["since"], 1))
    assert (verdict["verdict"], verdict["culprit"]["rank"]) == ("HUNG", 0)
    assert verdict["culprit"]["device"] == GPU
    assert (call["node"], call["device"]) == ("/dev/nvidia0", GPU)
