"""One process over time: which bytes between ranks are more than heartbeats."""

from __future__ import annotations

import pytest

from kcover_ebpf.diagnosis.process import NS, ProcessHistory
from kcover_ebpf.ids import Pid


@pytest.mark.parametrize(
    ("typical", "moved", "is_payload"),
    [
        (0, 0, False),
        (0, 511, False),
        (0, 512, True),
        (100_000, 9_999, False),
        (100_000, 10_001, True),
        (1_000, 511, False),
    ],
)
def test_heartbeats_are_distinguished_from_payload(
    typical: int, moved: int, is_payload: bool
) -> None:
    view = ProcessHistory(Pid(1), 0)
    view.on_peer_bytes(typical, NS)
    assert view.on_peer_bytes(moved, 2 * NS) is is_payload
    assert view.peer_bytes_ns == (2 * NS if is_payload else NS if typical else 0)


def test_heartbeats_never_become_typical() -> None:
    view = ProcessHistory(Pid(1), 0)
    view.on_peer_bytes(100_000, 0)
    assert not any(view.on_peer_bytes(5_000, step * NS) for step in range(1, 300))
