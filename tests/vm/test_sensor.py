"""The whole sensor in a guest: a fatal Xid ends the local job that holds the device."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.vm import kernels
from tests.vm.conftest import GPU
from tests.vm.guest import Guest
from tests.vm.test_devices import SAY

LAUNCH = (
    "for r in 0 1; do RANK=$r LOCAL_RANK=$r WORLD_SIZE=2 "
    f"/usr/bin/python3 {kernels.ROOT}/tests/vm/job.py & done; wait"
)


class Run:
    """`kcover-ebpf run` in the guest."""

    def __init__(self, guest: Guest, *options: str, launch: str = LAUNCH) -> None:
        command = kernels.ROOT / ".venv/bin/kcover-ebpf"
        self._out, self._code = guest.share / "run.json", guest.share / "run.code"
        for path in (self._out, self._code):
            path.unlink(missing_ok=True)
        script = (
            f"{command} run -o json {' '.join(options)} -- /bin/sh -c '{launch}' "
            "> /share/run.json 2> /share/run.log; echo $? > /share/run.code"
        )
        guest.start("/bin/sh", "-c", script, log="/dev/null")

    def lines(self) -> list[dict[str, Any]]:
        if not self._out.exists():
            return []
        whole = self._out.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def wait(self, found: Any, what: str) -> list[dict[str, Any]]:
        deadline = time.monotonic() + 400
        while not found(self.lines()):
            if time.monotonic() > deadline:
                log = self._out.with_suffix(".log").read_text()[-1500:]
                pytest.fail(f"no {what}: {self.lines()[-5:]} {log}", pytrace=False)
            time.sleep(0.1)
        return self.lines()

    def code(self) -> int:
        self.wait(lambda _: self._code.exists() and self._code.read_text().strip(), "end")
        return int(self._code.read_text())


def trains(lines: list[dict[str, Any]]) -> bool:
    return any(line.get("cause") == "training" for line in lines)


def ended(lines: list[dict[str, Any]]) -> bool:
    return any(line["event"] == "end" for line in lines)


def fault(lines: list[dict[str, Any]]) -> dict[str, Any]:
    (verdict,) = [line for line in lines if line.get("verdict") == "DEVICE_FAULT"]
    return verdict


def test_a_fatal_xid_ends_the_job_that_holds_the_gpu(
    guest: Guest, driver: kernels.Prepared, capsys: pytest.CaptureFixture[str]
) -> None:
    guest.python("import time")
    guest.python(SAY)
    run = Run(guest, "--act", "shutdown")
    run.wait(trains, "training")
    begun_s = int(guest.python(f"say('xid 79 {GPU} GPU has fallen off the bus.')")) / 1e9
    offset_s = float(guest.python("print(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))"))
    lines = run.wait(ended, "end")
    assert run.code() == 75
    verdict = fault(lines)
    assert verdict["cause"] == "device"
    assert verdict["culprit"]["device"] == GPU
    assert verdict["culprit"]["rank"] == 0
    assert "Xid 79" in verdict["evidence"][0]["text"]
    assert "fallen off the bus" in verdict["evidence"][0]["text"]
    acted = [line for line in lines if line["event"] == "action"]
    with capsys.disabled():
        told_ms = (verdict["time"] - begun_s - offset_s) * 1e3
        acted_ms = (acted[0]["time"] - begun_s - offset_s) * 1e3
        print(f"\n  Xid 79 to verdict {told_ms:.0f} ms, to shutdown {acted_ms:.0f} ms, guest time")


@pytest.mark.parametrize("report", ["63 {gpu} Row Remapper", "31 {gpu} MMU Fault"])
def test_a_harmless_xid_ends_nothing(guest: Guest, driver: kernels.Prepared, report: str) -> None:
    guest.python("import time")
    guest.python(SAY)
    run = Run(guest, "--act", "shutdown", "--for", "25s")
    run.wait(trains, "training")
    guest.python(f"say('xid {report.format(gpu=GPU)}')")
    lines = run.wait(ended, "end")
    assert run.code() == 0
    reports = [line for line in lines if line.get("fact") == "xid_reported"]
    assert [line["number"] for line in reports] == [int(report.split(maxsplit=1)[0])]
    assert not [line for line in lines if line.get("verdict") == "DEVICE_FAULT"]


def stuck(lines: list[dict[str, Any]]) -> bool:
    return any(line.get("cause") == "driver_stuck" for line in lines)


def test_a_driver_call_that_hangs(guest: Guest, driver: kernels.Prepared) -> None:
    """The rank sits in an ioctl in state D: no signal ends it, and the GPU is named."""
    run = Run(guest, "--for", "200s", launch=f"export JOB_STUCK=400; {LAUNCH}")
    lines = run.wait(stuck, "driver call")
    verdict = next(line for line in lines if line.get("cause") == "driver_stuck")
    assert (verdict["verdict"], verdict["culprit"]["rank"]) == ("HUNG", 0)
    assert verdict["culprit"]["device"] == GPU
    (call,) = [line for line in lines if line.get("fact") == "driver_call"]
    assert (call["node"], call["device"]) == ("/dev/nvidia0", GPU)
