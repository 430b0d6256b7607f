"""Error counters of RDMA ports, from files as the kernel has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcover_ebpf.devices.rdma_errors import PortErrorReader, PortErrors
from kcover_ebpf.devices.rdma_traffic import FabricReader
from kcover_ebpf.facts.devices import FabricErrors
from kcover_ebpf.host.open_files import OpenFiles
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.devices import RDMA_ERRORS_S

MLX5, RXE = "hw_counters/packet_seq_err", "hw_counters/rcvd_seq_err"


class Host:
    """A root with RDMA devices, as /sys has them, and processes that have some of them open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.devices = root / "sys/class/infiniband"
        self.devices.mkdir(parents=True)

    def add(self, name: str, *pids: int) -> Path:
        device = self.devices / name
        (device / f"device/infiniband_verbs/uverbs-{name}").mkdir(parents=True)
        for pid in pids:
            links = self.root / f"proc/{pid}/fd"
            links.mkdir(parents=True, exist_ok=True)
            (links / name).symlink_to(f"/dev/infiniband/uverbs-{name}")
        return device

    def count(self, name: str, counter: str, count: int | str, port: int = 1) -> None:
        file = self.devices / name / f"ports/{port}" / counter
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{count}\n")

    def reader(self) -> FabricReader:
        return FabricReader(self.root, OpenFiles(self.root / "proc"))


def test_port_error_reader__what_has_grown_by_port_and_counter(tmp_path: Path) -> None:
    host, reader = Host(tmp_path), PortErrorReader()
    device = host.add("mlx5_0")
    host.count("mlx5_0", MLX5, 100)
    host.count("mlx5_0", "counters/symbol_error", 7)
    host.count("mlx5_0", "counters/symbol_error", 0, port=2)
    assert reader.grown([device]) == {device: []}
    host.count("mlx5_0", MLX5, 140)
    host.count("mlx5_0", "counters/symbol_error", 9)
    host.count("mlx5_0", "counters/symbol_error", 1, port=2)
    assert reader.grown([device]) == {
        device: [
            PortErrors("mlx5_0/1", "", (("symbol_error", 2), ("packet_seq_err", 40))),
            PortErrors("mlx5_0/2", "", (("symbol_error", 1),)),
        ]
    }
    assert reader.grown([device]) == {device: []}


@pytest.mark.parametrize("count", [0, 99, "", "N/A", -1])
def test_port_error_reader__a_counter_that_was_set_back_or_cannot_be_read_has_not_grown(
    tmp_path: Path, count: int | str
) -> None:
    host, reader = Host(tmp_path), PortErrorReader()
    device = host.add("soft")
    host.count("soft", RXE, 100)
    reader.grown([device])
    host.count("soft", RXE, count)
    assert reader.grown([device]) == {device: []}
    host.count("soft", RXE, count if isinstance(count, int) else 100)
    assert reader.grown([device]) == {device: []}


def test_port_error_reader__a_device_without_counters_is_healthy_and_one_that_returns_begins_again(
    tmp_path: Path,
) -> None:
    host, reader = Host(tmp_path), PortErrorReader()
    bare, device = host.add("bare"), host.add("soft")
    host.count("soft", RXE, 1)
    reader.grown([bare, device])
    assert reader.grown([]) == {}
    host.count("soft", RXE, 1_000)
    assert reader.grown([bare, device]) == {bare: [], device: []}


def test_fabric_reader__errors_are_those_of_the_ports_that_a_process_has_open(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path)
    host.add("mlx5_0", 7, 8)
    host.add("mlx5_1")
    for name in ("mlx5_0", "mlx5_1"):
        host.count(name, MLX5, 0)
    reader = host.reader()
    assert reader.read([Pid(7), Pid(8)], 1, 0.0) == []
    for name in ("mlx5_0", "mlx5_1"):
        host.count(name, MLX5, 30)
    assert reader.read([Pid(7), Pid(8)], 2, RDMA_ERRORS_S - 0.1) == [], "not yet"
    assert reader.read([Pid(7), Pid(8)], 3, RDMA_ERRORS_S) == [
        FabricErrors(3, Pid(pid), "mlx5_0/1", "", (("packet_seq_err", 30),)) for pid in (7, 8)
    ]


def test_fabric_reader__no_error_counter_is_read_while_no_member_has_a_device_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path)
    host.add("mlx5_0", 7)
    host.count("mlx5_0", MLX5, 1)
    opened: list[str] = []

    def text(path: Path) -> str:
        opened.append(path.name)
        return "1"

    monkeypatch.setattr("kcover_ebpf.devices.rdma_errors.text", text)
    reader = host.reader()
    for second in range(60):
        reader.read([Pid(8)], second, float(second))
    assert opened == []
    reader.read([Pid(7)], 60, 60.0)
    assert opened == ["packet_seq_err"]
