"""Link messages of netlink, by bytes; the real kernel's in tests/kernel/test_ports.py."""

import itertools
import struct
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcover_ebpf.devices import ports
from kcover_ebpf.devices.fault_rules import of_port
from kcover_ebpf.devices.ports import Link, PortWatch, parse_links
from kcover_ebpf.facts.devices import DeviceFault, PortChange
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.devices import RDMA_PERIOD_NS
from tests.unit.support.patience import soon


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
def test_parse_links__messages(raw, links):
    assert list(parse_links(raw)) == links


@given(st.binary(max_size=200), st.integers(0, 120))
def test_parse_links__no_bytes_break_the_parser(noise, at):
    good = message("eth0", 6)
    for raw in (noise, good[:at] + noise + good[at:]):
        assert Link("eth0", "up", True) in parse_links(good + raw), "read before the noise"


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
        changes(found, 0)
        found.has_new = False
        yield found


def changes(watch, at_ns: int) -> list[tuple[bool, str]]:
    """What changed by the poll of this moment, in periods of polling."""
    reported = watch.changes(at_ns * RDMA_PERIOD_NS)
    deadline_s = time.monotonic() + 10
    while watch._readers._tasks and time.monotonic() < deadline_s:
        reported += watch.changes(at_ns * RDMA_PERIOD_NS)
    reported = [replace(item, boottime_ns=0) for item in reported if "/" in item.port]
    assert all(item == replace(item, port="mlx5_0/1", device="0000:9a:00.0") for item in reported)
    return [(item.up, item.text) for item in reported]


def test_port_watch__counters_of_rdma_ports(watch, port):
    assert changes(watch, 1) == []
    (port / "counters/link_downed").write_text("5\n")
    assert changes(watch, 2) == [(True, "link_downed +2")]
    assert changes(watch, 3) == []


def test_port_watch__counters_of_a_port_without_a_link_do_not_begin_its_time_down(watch, port):
    """A port without a cable would end each stalled job that has its adapter open."""
    (port / "state").write_text("1: DOWN\n")
    (port / "counters/link_downed").write_text("4\n")
    assert changes(watch, 1) == [(False, "port DOWN"), (False, "link_downed +1")]
    (port / "counters/link_downed").write_text("6\n")
    assert changes(watch, 2) == []
    (port / "state").write_text("4: ACTIVE\n")
    assert changes(watch, 3) == [(True, "port ACTIVE")]
    (port / "counters/link_downed").write_text("7\n")
    assert changes(watch, 4) == [(True, "link_downed +1")]


def test_port_watch__a_counter_that_is_no_text_hides_no_other(watch, port):
    (port / "counters/symbol_error").write_bytes(b"\xff\n")
    (port / "counters/link_downed").write_text("4\n")
    assert changes(watch, 1) == [(True, "link_downed +1")]


def test_port_watch__an_rdma_port_of_which_only_the_state_changes(watch, port):
    """Where kprobes cannot be had; that it is up again must be reported, or its job would be ended."""
    steps: tuple[tuple[str, list[tuple[bool, str]]], ...] = (
        ("1: DOWN", [(False, "port DOWN")]),
        ("1: DOWN", []),
        ("2: INIT", []),
        ("4: ACTIVE", [(True, "port ACTIVE")]),
        ("", []),
        ("4: ACTIVE", []),
    )
    for at_ns, (state, reported) in enumerate(steps, 1):
        (port / "state").write_text(f"{state}\n")
        assert changes(watch, at_ns) == reported


def test_port_watch__a_device_that_comes_later(tmp_path, watch):
    assert not watch.has_new
    later = tmp_path / "sys/class/infiniband/mlx5_1/ports/1"
    later.mkdir(parents=True)
    (later / "state").write_text("1: DOWN\n")
    (tmp_path / "sys/class/infiniband/mlx5_1/device").symlink_to("../../../0000:9b:00.0")
    assert changes(watch, 1) == []
    assert watch.has_new


def test_port_watch__what_the_kernel_reported_an_rdma_port_is_not_reported_again(watch, port):
    (port / "state").write_text("1: DOWN\n")
    watch.heard(PortChange(1, "mlx5_0/1", "", False, "port down"))
    assert changes(watch, 2) == []
    (port / "state").write_text("4: ACTIVE\n")
    assert changes(watch, 3) == [(True, "port ACTIVE")]


def test_of_port__whom_a_port_concerns():
    change = PortChange(5, "mlx5_0/1", "", False, "port down")
    fault = replace(of_port(change, "0000:9a:00.0"), holders=frozenset({Pid(7)}))
    assert (fault.port, fault.device_unfit) == ("mlx5_0/1", False)
    assert fault.of_holders == [
        DeviceFault(
            5, Pid(7), "0000:9a:00.0", "port down", "RDMA port mlx5_0/1 is down: port down", False
        )
    ]


def test_port_watch__a_card_that_does_not_answer_is_not_waited_for(tmp_path, watch, monkeypatch):
    """Its firmware may take a minute, and the loop watches all jobs of the node."""
    later = tmp_path / "sys/class/infiniband/mlx5_1/ports/1"
    later.mkdir(parents=True)
    (later / "state").write_text("4: ACTIVE\n")
    over, asked = threading.Event(), []
    read = ports._read_port

    def slow(folder):
        asked.append(folder.parent.parent.name)
        if "mlx5_1" in asked[-1]:
            over.wait()
        return read(folder)

    monkeypatch.setattr(ports, "_read_port", slow)
    (tmp_path / "sys/class/infiniband/mlx5_0/ports/1/state").write_text("1: DOWN\n")
    reported, numbers = [], itertools.count(1)

    def is_polled_on():
        reported.extend(watch.changes(next(numbers) * RDMA_PERIOD_NS))
        return asked.count("mlx5_0") > 4

    assert soon(is_polled_on)
    assert [item.text for item in reported] == ["port DOWN"]
    assert asked.count("mlx5_1") == 1
    over.set()


def test_port_watch__ports_are_not_polled_in_every_pass(watch, monkeypatch):
    asked: list[Path] = []
    monkeypatch.setattr(ports, "_read_port", asked.append)
    for number in range(20):
        watch.changes(RDMA_PERIOD_NS + number * RDMA_PERIOD_NS // 20)
        time.sleep(0.002)
    assert len(asked) == 1
