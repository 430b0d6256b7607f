"""Link messages of netlink, by bytes; the real kernel's in tests/kernel/test_ports.py."""

import struct
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.device_facts import DeviceFault, PortChange
from kcover_ebpf.hardware.faults import of_port
from kcover_ebpf.hardware.ports import Link, PortWatch, parse_links
from kcover_ebpf.ids import Pid


def attribute(kind: int, value: bytes) -> bytes:
    length = 4 + len(value)
    return struct.pack("=HH", length, kind) + value + bytes(-length % 4)


def message(name: str, state: int, *, flags: int = 1, kind: int = 16) -> bytes:
    body = struct.pack("=BxHiII", 0, 1, 3, flags, 0)
    body += attribute(3, name.encode() + b"\0") + attribute(16, bytes([state]))
    return struct.pack("=LHHLL", 16 + len(body), kind, 0, 0, 0) + body


@pytest.mark.parametrize(
    ("raw", "links"),
    [
        (message("eth0", 6), [Link("eth0", "up", True)]),
        (message("eth0", 2), [Link("eth0", "down", True)]),
        (message("eth0", 2, flags=0), [Link("eth0", "down", False)]),
        (message("eth0", 2, kind=17), [Link("eth0", "gone", True)]),
        (message("eth0", 99), [Link("eth0", "unknown", True)]),
        (
            message("a", 6) + message("b", 3),
            [Link("a", "up", True), Link("b", "lowerlayerdown", True)],
        ),
        (message("eth0", 6, kind=20), []),
        (message("eth0", 6)[:-3], []),
        (b"", []),
    ],
)  # fmt: skip
def test_messages(raw, links):
    assert list(parse_links(raw)) == links


@given(st.binary(max_size=200), st.integers(0, 120))
def test_no_bytes_break_the_parser(noise, at):
    good = message("eth0", 6)
    for raw in (noise, good[:at] + noise + good[at:]):
        list(parse_links(raw))


@pytest.fixture
def port(tmp_path):
    """An RDMA port of a file tree, which is active and went down three times."""
    folder = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    (folder / "counters").mkdir(parents=True)
    (folder / "state").write_text("4: ACTIVE\n")
    (folder / "counters/link_downed").write_text("3\n")
    (tmp_path / "sys/class/infiniband/mlx5_0/device").symlink_to("../../../0000:9a:00.0")
    return folder


@pytest.fixture
def watch(tmp_path, port):
    with closing(PortWatch(tmp_path)) as found:
        yield found


def changes(watch, at_ns: int) -> list[tuple[bool, str]]:
    told = [each for each in watch.changes(at_ns) if "/" in each.port]
    assert all(each == replace(each, port="mlx5_0/1", device="0000:9a:00.0") for each in told)
    return [(each.up, each.text) for each in told]


def test_counters_of_rdma_ports(watch, port):
    assert changes(watch, 1) == []
    (port / "counters/link_downed").write_text("5\n")
    assert changes(watch, 2) == [(True, "link_downed +2")]
    assert changes(watch, 3) == []


def test_an_rdma_port_of_which_only_the_state_tells(watch, port):
    """Where kprobes cannot be had; that it comes back must be told, or its job would be ended."""
    for state, told in (
        ("1: DOWN", [(False, "port DOWN")]),
        ("1: DOWN", []),
        ("2: INIT", []),
        ("4: ACTIVE", [(True, "port ACTIVE")]),
        ("", []),
        ("4: ACTIVE", []),
    ):
        (port / "state").write_text(f"{state}\n")
        assert changes(watch, 1) == told


def test_a_device_that_comes_later(tmp_path, watch):
    assert not watch.has_new
    later = tmp_path / "sys/class/infiniband/mlx5_1/ports/1"
    later.mkdir(parents=True)
    (later / "state").write_text("1: DOWN\n")
    (tmp_path / "sys/class/infiniband/mlx5_1/device").symlink_to("../../../0000:9b:00.0")
    assert changes(watch, 1) == []
    assert watch.has_new


def test_what_the_kernel_told_of_an_rdma_port_is_not_told_again(watch, port):
    (port / "state").write_text("1: DOWN\n")
    watch.heard(PortChange(1, "mlx5_0/1", "", False, "port down"))
    assert changes(watch, 2) == []
    (port / "state").write_text("4: ACTIVE\n")
    assert changes(watch, 3) == [(True, "port ACTIVE")]


def test_whom_a_port_concerns():
    change = PortChange(5, "mlx5_0/1", "", False, "port down")
    assert of_port(change, {Pid(7)}, "0000:9a:00.0") == [
        DeviceFault(
            5, Pid(7), "0000:9a:00.0", "port down", "RDMA port mlx5_0/1 is down: port down", False
        )
    ]
