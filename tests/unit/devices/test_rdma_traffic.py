"""Bytes over RDMA ports, from files as the kernel has them; a thread reads them, which may hang."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kcover_ebpf.devices.rdma_traffic import FabricReader, FabricWatch
from kcover_ebpf.facts.devices import FabricErrors, FabricMoved
from kcover_ebpf.host.open_files import OpenFiles
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.devices import PORT_HOLDERS_S


class Host:
    """A root with two RDMA devices and a process that has the first one open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for index, name in enumerate(("mlx5_0", "mlx5_1")):
            (root / f"sys/class/infiniband/{name}/ports/1/counters").mkdir(parents=True)
            verbs = root / f"sys/class/infiniband/{name}/device/infiniband_verbs/uverbs{index}"
            verbs.mkdir(parents=True)
            self.count(name, 0, 0)
        links = root / "proc/7/fd"
        links.mkdir(parents=True)
        (links / "5").symlink_to("/dev/infiniband/uverbs0")

    def count(self, name: str, sent: int, received: int) -> None:
        folder = self.root / f"sys/class/infiniband/{name}/ports/1/counters"
        (folder / "port_xmit_data").write_text(f"{sent}\n")
        (folder / "port_rcv_data").write_text(f"{received}\n")


def test_fabric_reader__bytes_are_those_of_the_ports_that_a_process_has_open(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path)
    reader = FabricReader(tmp_path, OpenFiles(tmp_path / "proc"))
    assert reader.has_ports
    assert reader.read([Pid(7), Pid(8)], 1, 0.0) == []
    host.count("mlx5_0", 100, 25)
    host.count("mlx5_1", 9_000, 0)
    assert reader.read([Pid(7), Pid(8)], 2, 1.0) == [FabricMoved(2, Pid(7), 500)]
    host.count("mlx5_0", 0, 0)
    assert reader.read([Pid(7)], 3, 2.0) == []


def test_fabric_reader__a_host_without_rdma_has_no_ports(tmp_path: Path) -> None:
    reader = FabricReader(tmp_path, OpenFiles(tmp_path / "proc"))
    assert not reader.has_ports
    assert reader.read([Pid(7)], 1, 0.0) == []


class FakeStuckReader(FabricReader):
    """Its firmware answers no more."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, OpenFiles(root / "proc"))
        self.asked, self.answer = threading.Event(), threading.Event()

    def read(self, *_: object) -> list[FabricMoved | FabricErrors]:
        self.asked.set()
        self.answer.wait()
        return []


def test_fabric_watch__nothing_waits_for_a_port_that_does_not_answer(tmp_path: Path) -> None:
    reader = FakeStuckReader(tmp_path)
    watch = FabricWatch(reader)
    assert reader.asked.wait(5)
    assert list(watch.tick([Pid(7)])) == []
    watch.close()
    reader.answer.set()


def test_fabric_reader__counters_of_other_adapters_have_other_names_and_units(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path)
    counters = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/hw_counters"
    counters.mkdir()
    reader = FabricReader(tmp_path, OpenFiles(tmp_path / "proc"))
    (counters / "tx_bytes").write_text("1000\n")
    assert reader.read([Pid(7)], 1, 0.0) == []
    (counters / "tx_bytes").write_text("1750\n")
    assert reader.read([Pid(7)], 2, 1.0) == [FabricMoved(2, Pid(7), 750)]
    host.count("mlx5_0", 2, 0)
    assert reader.read([Pid(7)], 3, 2.0) == [FabricMoved(3, Pid(7), 8)]


@pytest.mark.parametrize("text", ["", "N/A\n", "-\n"])
def test_fabric_reader__a_counter_that_cannot_be_read_moves_nothing(
    tmp_path: Path, text: str
) -> None:
    host = Host(tmp_path)
    reader = FabricReader(tmp_path, OpenFiles(tmp_path / "proc"))
    assert reader.read([Pid(7)], 1, 0.0) == []
    host.count("mlx5_0", 100, 100)
    folder = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters"
    (folder / "port_rcv_data").write_text(text)
    assert reader.read([Pid(7)], 2, 1.0) == [FabricMoved(2, Pid(7), 400)]


def test_fabric_reader__a_device_that_appears_later_moved_nothing_until_then(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path)
    device = tmp_path / "sys/class/infiniband/mlx5_0"
    away = tmp_path / "away"
    device.rename(away)
    reader = FabricReader(tmp_path, OpenFiles(tmp_path / "proc"))
    assert reader.read([Pid(7)], 1, 0.0) == []
    away.rename(device)
    host.count("mlx5_0", 5_000, 0)
    # who has it open is asked again after a while
    assert reader.read([Pid(7)], 2, PORT_HOLDERS_S) == []
    host.count("mlx5_0", 5_001, 0)
    assert reader.read([Pid(7)], 3, PORT_HOLDERS_S + 1) == [FabricMoved(3, Pid(7), 4)]


@pytest.mark.parametrize("text", ["", "N/A\n"])
def test_fabric_reader__a_counter_that_can_be_read_again_has_not_moved_all_its_bytes(
    tmp_path: Path, text: str
) -> None:
    """Firmware that is failing answers some reads; a job that waits for it must not seem to continue."""
    host = Host(tmp_path)
    host.count("mlx5_0", 1_000, 1_000)
    reader = FabricReader(tmp_path, OpenFiles(tmp_path / "proc"))
    assert reader.read([Pid(7)], 1, 0.0) == []
    counter = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data"
    counter.write_text(text)
    assert reader.read([Pid(7)], 2, 1.0) == []
    host.count("mlx5_0", 1_000, 1_000)
    assert reader.read([Pid(7)], 3, 2.0) == []
    host.count("mlx5_0", 1_000, 1_005)
    assert reader.read([Pid(7)], 4, 3.0) == [FabricMoved(4, Pid(7), 20)]


def test_fabric_reader__devices_of_one_pci_function_are_counted_each_by_itself(
    tmp_path: Path,
) -> None:
    """Such as one made of software on top of an adapter."""
    host = Host(tmp_path)
    device = tmp_path / "sys/class/infiniband/mlx5_1/device/infiniband_verbs"
    (device / "uverbs1").rename(device / "uverbs0")
    host.count("mlx5_0", 1_000, 0)
    reader = FabricReader(tmp_path, OpenFiles(tmp_path / "proc"))
    for second in range(3):
        assert reader.read([Pid(7)], second, second) == []
    host.count("mlx5_1", 5, 0)
    assert reader.read([Pid(7)], 3, 3.0) == [FabricMoved(3, Pid(7), 20)]
