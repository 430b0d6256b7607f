"""The whole sensor in a guest: what ends the local job that holds the device, and what does not.

Its times are of a guest whose clock is the host's: on a busy host they say nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.vm import kernels
from tests.vm.conftest import GPU
from tests.vm.guest import Guest
from tests.vm.packages import ROOT
from tests.vm.sensing import INJECT, SAY, Line, Lines, Run, ended, of_kind, trains

Figure = Callable[[str, object], None]
LAUNCH = (
    "for r in 0 1; do RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 "
    f"/usr/bin/python3 {ROOT}/tests/vm/job.py & done; wait"
)
HARMLESS = (63, 31)
"""Handled by the hardware; an application's own fault."""
FATAL = {
    "Xid 79": f"say('xid 79 {GPU} GPU has fallen off the bus.')",
    "AER fatal": f"print(time.clock_gettime_ns(7)); inject('{GPU}', 0x40000, 0)",
}


def verdict_of(lines: Lines, kind: str) -> Line:
    (verdict,) = [line for line in lines if line.get("verdict") == kind]
    return verdict


def is_ended_by(run: Run, guest: Guest, fatal: str, note: Figure) -> Line:
    """Cause it; the verdict, once the job was shut down; both latencies are noted."""
    begun_s = int(guest.python(FATAL[fatal])) / 1e9
    offset_s = float(guest.python("print(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))"))
    lines = run.wait(ended, "end")
    assert run.code() == 75
    verdict = verdict_of(lines, "DEVICE_FAULT")
    acted = next(line for line in lines if line["event"] == "action")
    note("to_verdict_ms", round((verdict["time"] - begun_s - offset_s) * 1e3))
    note("to_shutdown_ms", round((acted["time"] - begun_s - offset_s) * 1e3))
    assert verdict["cause"] == "device"
    assert verdict["culprit"]["device"] == GPU
    assert verdict["culprit"]["rank"] == 0
    assert fatal.partition(" ")[0] in verdict["evidence"][0]["text"]
    return verdict


@pytest.mark.family("sensor")
def test_of_several_xids_the_fatal_one_ends_the_job_that_holds_the_gpu(
    guest: Guest, driver: kernels.Prepared, record_property: Figure
) -> None:
    guest.python(SAY)
    run = Run(guest, "--act", "shutdown", launch=LAUNCH)
    run.wait(trains, "training")
    for number in HARMLESS:
        guest.python(f"say('xid {number} {GPU} harmless'); time.sleep(3)")
    before = run.wait(lambda lines: len(of_kind(lines, "xid_reported")) == 2, "harmless Xids")
    assert [line["number"] for line in of_kind(before, "xid_reported")] == list(HARMLESS)
    assert not [line for line in before if line.get("verdict") == "DEVICE_FAULT"]
    verdict = is_ended_by(run, guest, "Xid 79", record_property)
    assert "fallen off the bus" in verdict["evidence"][0]["text"]


@pytest.mark.family("sensor")
def test_a_fatal_pcie_error_ends_the_job_that_holds_the_gpu(
    guest: Guest, driver: kernels.Prepared, record_property: Figure
) -> None:
    guest.python(INJECT)
    run = Run(guest, "--act", "shutdown", launch=LAUNCH)
    run.wait(trains, "training")
    is_ended_by(run, guest, "AER fatal", record_property)


def stuck(lines: Lines) -> bool:
    return any(line.get("cause") == "driver_stuck" for line in lines)


@pytest.mark.family("stuck")
def test_a_driver_call_that_hangs(
    guest: Guest, driver: kernels.Prepared, record_property: Figure
) -> None:
    """The rank sits in an ioctl in state D: no signal ends it, and the GPU is named."""
    run = Run(guest, "--for", "200s", launch=f"export JOB_STUCK=400; {LAUNCH}")
    lines = run.wait(stuck, "driver call")
    verdict = next(line for line in lines if line.get("cause") == "driver_stuck")
    (call,) = of_kind(lines, "driver_call")
    record_property("to_verdict_s", round(verdict["time"] - verdict["since"], 1))
    assert (verdict["verdict"], verdict["culprit"]["rank"]) == ("HUNG", 0)
    assert verdict["culprit"]["device"] == GPU
    assert (call["node"], call["device"]) == ("/dev/nvidia0", GPU)
