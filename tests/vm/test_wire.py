"""Two machines with a wire between them that can be cut: what the sensor on one of them says."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vm import kernels
from tests.vm.guest import Guest, GuestError, wire_end
from tests.vm.test_sensor import Run, trains

NEAR, FAR = "10.77.0.1", "10.77.0.2"
CARD = "$(basename $(dirname $(grep -l 52:54 /sys/class/net/*/address)))"
RANK = f"RANK={{rank}} JOB_ADDRESS={NEAR} JOB_GPU= exec /usr/bin/python3 {kernels.ROOT}/tests/vm/job.py"


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


@pytest.fixture
def run(pair: tuple[Guest, Guest]) -> Iterator[Run]:
    """The sensor beside rank 0; rank 1 is on the other machine. Both train."""
    near, far = pair
    other = far.start("/bin/sh", "-c", RANK.format(rank=1), log="/dev/null")
    watching = Run(near, "--for", "300s", launch=RANK.format(rank=0))
    watching.wait(trains, "training")
    yield watching
    far.run("/bin/kill", str(other))
    watching.code()


def lost(lines: list[dict[str, Any]]) -> bool:
    return any(line.get("verdict") == "LOST_LINK" for line in lines)


def healed(lines: list[dict[str, Any]]) -> bool:
    kinds = [line["verdict"] for line in lines if line["event"] == "verdict"]
    return "LOST_LINK" in kinds and kinds[-1] == "WORKING"


def verdict(lines: list[dict[str, Any]]) -> dict[str, Any]:
    return next(line for line in lines if line.get("verdict") == "LOST_LINK")


def test_a_wire_that_loses_everything_in_silence(pair: tuple[Guest, Guest], run: Run) -> None:
    near, _ = pair
    near.monitor("set_link wire off")
    lines = run.wait(lost, "lost link")
    near.monitor("set_link wire on")
    said = verdict(lines)
    assert said["cause"] == "link"
    assert any(FAR in each["text"] for each in said["evidence"])
    # the card has a carrier all the time
    assert not [line for line in lines if line.get("fact") == "port_change"]
    run.wait(healed, "healing")


def test_a_plug_that_is_pulled(pair: tuple[Guest, Guest], run: Run) -> None:
    near, _ = pair
    near.monitor("set_link card off")
    lines = run.wait(lost, "lost link")
    carrier = near.shell(f"cat /sys/class/net/{CARD}/carrier").strip()
    near.monitor("set_link card on")
    assert carrier == "0"
    (down,) = [x for x in lines if x.get("fact") == "port_change" and not x["up"]]
    assert down["addresses"] == [NEAR]
    said = verdict(lines)
    assert said["evidence"][0]["kind"] == "event"
    assert down["port"] in said["evidence"][0]["text"]
    run.wait(healed, "healing")
