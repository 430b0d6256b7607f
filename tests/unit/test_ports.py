"""Link messages of netlink, by bytes; the real kernel's in tests/kernel/test_ports.py."""

import struct

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


def test_counters_of_rdma_ports(tmp_path):
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    (port / "counters").mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    downed = port / "counters/link_downed"
    downed.write_text("3\n")
    (tmp_path / "sys/class/infiniband/mlx5_0/device").symlink_to("../../../0000:9a:00.0")
    watch = PortWatch(tmp_path)
    try:
        assert [c for c in watch.changes(1) if "/" in c.port] == []
        downed.write_text("5\n")
        changes = [change for change in watch.changes(2) if "/" in change.port]
        assert changes == [PortChange(2, "mlx5_0/1", "0000:9a:00.0", True, "link_downed +2")]
    finally:
        watch.close()


def test_whom_a_port_concerns():
    change = PortChange(5, "mlx5_0/1", "", False, "port down")
    assert of_port(change, {Pid(7)}, "0000:9a:00.0") == [
        DeviceFault(
            5, Pid(7), "0000:9a:00.0", "port down", "RDMA port mlx5_0/1 is down: port down", False
        )
    ]
