"""The MTU of the route to ourselves; echoes: what is sent, and what is an answer."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.inspection.path_mtu import is_reply, mtu_to, request

V4, V6 = socket.AF_INET, socket.AF_INET6
HEADER = bytes([0x46]) + bytes(23)
"""Of IPv4, with one option: 24 bytes."""
MTU_OF_LOOPBACK = int(Path("/sys/class/net/lo/mtu").read_text())


def message(kind: int, code: int = 0, identity: int = 7, number: int = 1) -> bytes:
    return struct.pack("!BBHHH", kind, code, 0, identity, number) + b"rest"


@pytest.mark.parametrize(("family", "kind", "header"), [(V4, 8, 20), (V6, 128, 40)])
@given(size=st.integers(84, 9000), identity=st.integers(0, 65535), number=st.integers(0, 65535))
def test_request__has_the_size_and_in_ipv4_the_checksum(
    family: int, kind: int, header: int, size: int, identity: int, number: int
) -> None:
    sent = request(family, size, identity, number)
    assert len(sent) == size - header
    assert struct.unpack("!BBHHH", sent[:8])[:2] + struct.unpack("!HH", sent[4:8]) == (
        kind,
        0,
        identity,
        number,
    )
    words = sum(struct.unpack("!4H", sent[:8]))
    assert family == V6 or words % 0xFFFF == 0, "all words and the checksum add up to ones"


@pytest.mark.parametrize(
    ("family", "packet", "expected"),
    [
        (V4, HEADER + message(0), True),
        (V6, message(129), True),
        (V4, HEADER + message(8), False),
        (V4, HEADER + message(0, identity=8), False),
        (V4, HEADER + message(0, number=2), False),
        (V4, HEADER + message(3, code=4), False),
        (V4, HEADER + message(0)[:7], False),
        (V6, b"", False),
    ],
)
def test_is_reply__of_this_request_alone(family: int, packet: bytes, expected: bool) -> None:
    assert is_reply(family, packet, 7, 1) is expected


@given(family=st.sampled_from([V4, V6]), packet=st.binary(max_size=80))
def test_is_reply__any_bytes(family: int, packet: bytes) -> None:
    assert is_reply(family, packet, 7, 1) in (True, False)


def test_mtu_to__the_route_to_ourselves() -> None:
    assert mtu_to(socket.AF_INET, "127.0.0.1") == MTU_OF_LOOPBACK


def test_mtu_to__no_address() -> None:
    assert mtu_to(socket.AF_INET, "nowhere") is None
