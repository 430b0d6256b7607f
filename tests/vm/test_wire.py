"""Two machines with a wire between them that can be cut: what the sensor on one of them says."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.machines.packages import ROOT
from tests.vm import kernels
from tests.vm.guest import CARD, Guest, GuestError, wire_end
from tests.vm.sensing import Figure, Line, Lines, Run, of_kind, trains

pytestmark = pytest.mark.family("wire")

NEAR, FAR = "10.77.0.1", "10.77.0.2"
RANK = f"RANK={{rank}} JOB_ADDRESS={NEAR} JOB_GPU= exec /usr/bin/python3 {ROOT}/tests/vm/job.py"


@pytest.fixture(scope="module")
def pair(prepared: kernels.Prepared) -> Iterator[tuple[Guest, Guest]]:
    """Two guests that reach each other."""
    with tempfile.TemporaryDirectory(prefix="wire.") as folder:
        a, b = Path(folder) / "a", Path(folder) / "b"
        with (
            Guest(prepared, devices=wire_end(a, b), memory_mib=768) as near,
            Guest(prepared, devices=wire_end(b, a), memory_mib=768) as far,
        ):
            for guest, address in ((near, NEAR), (far, FAR)):
                guest.shell(
                    f"modprobe virtio_net; sleep 1; c={CARD}; "
                    f"ip address add {address}/24 dev $c; ip link set $c up"
                )
            assert "1 packets received" in reached(near)
            yield near, far


def reached(near: Guest) -> str:
    """What ping says, once the other end answers."""
    for _ in range(10):
        try:
            return near.shell(f"busybox ping -c 1 -W 5 {FAR}")
        except GuestError as error:
            last = error
    raise last


@pytest.fixture(scope="module")
def run(pair: tuple[Guest, Guest]) -> Run:
    """The sensor beside rank 0; rank 1 is on the other machine. Both train."""
    near, far = pair
    far.start("/bin/sh", "-c", RANK.format(rank=1), log="/dev/null")
    watching = Run(near, launch=RANK.format(rank=0))
    watching.wait(trains, "training")
    return watching


def lost(lines: Lines) -> Line | None:
    return next((line for line in lines if line.get("verdict") == "LOST_LINK"), None)


def healed(lines: Lines) -> bool:
    kinds = [line["verdict"] for line in lines if line["event"] == "verdict"]
    return "LOST_LINK" in kinds and kinds[-1] == "WORKING"


def cut(near: Guest, run: Run, what: str, note: Figure) -> Lines:
    """What the sensor says from the cut of the wire or the card to its healing."""
    begun = len(run.lines())
    cut_at_s = float(near.python("import time; print(time.time())"))
    near.monitor(f"set_link {what} off")
    try:
        run.wait(lambda lines: lost(lines) is not None, "lost link", begun)
        carrier = near.shell(f"cat /sys/class/net/{CARD}/carrier").strip()
    finally:
        near.monitor(f"set_link {what} on")
    lines = run.wait(healed, "healing", begun)
    verdict = lost(lines)
    assert verdict is not None
    note("to_verdict_s", round(verdict["time"] - cut_at_s, 1))
    # a wire that only loses packets leaves the card its carrier
    assert carrier == ("0" if what == "card" else "1")
    return lines


def test_a_wire_that_loses_everything_in_silence(
    pair: tuple[Guest, Guest], run: Run, record_property: Figure
) -> None:
    lines = cut(pair[0], run, "wire", record_property)
    said = lost(lines)
    assert said is not None
    assert said["cause"] == "link"
    assert any(FAR in item["text"] for item in said["evidence"])
    assert of_kind(lines, "port_change") == []


def test_a_plug_that_is_pulled(
    pair: tuple[Guest, Guest], run: Run, record_property: Figure
) -> None:
    lines = cut(pair[0], run, "card", record_property)
    (down,) = [fact for fact in of_kind(lines, "port_change") if not fact["up"]]
    assert NEAR in down["addresses"]
    said = lost(lines)
    assert said is not None
    assert said["evidence"][0]["kind"] == "event"
    assert down["port"] in said["evidence"][0]["text"]
