"""Clocks of progress: bytes over RDMA ports, read by a thread that may hang."""

from __future__ import annotations

import threading
from pathlib import Path

from kcover_ebpf.devices.rdma_traffic import FabricReader, FabricWatch
from kcover_ebpf.diagnosis.history.progress_clocks import ByteClock
from kcover_ebpf.facts.devices import FabricMoved
from kcover_ebpf.host.open_files import OpenFiles
from kcover_ebpf.ids import NS, Pid
from tests.unit.scripted_job import Stage


def test_byte_clock__a_heartbeat_is_no_progress_and_never_becomes_typical() -> None:
    clock = ByteClock(1000)
    assert not clock.observe(999, NS)
    assert clock.observe(1000, 2 * NS)
    assert [clock.observe(1_000_000, at * NS) for at in range(3, 30)] == [True] * 27
    assert not any(clock.observe(50_000, at * NS) for at in range(30, 300))
    assert clock.observe(500_000, 300 * NS)
    assert clock.moved_ns == 300 * NS


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

    def read(self, *_: object) -> list[FabricMoved]:
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


def test_progress_clocks__a_job_whose_data_goes_over_rdma_learns_its_cadence_from_that() -> None:
    stage = Stage(world=4, connected=False)
    for proc in stage.procs.values():
        stage.become(proc, "run")
    for second in range(120):
        stage.run(1)
        if second % 5 == 0:
            for proc in stage.procs.values():
                stage.feed(FabricMoved(stage.now_ns, Pid(proc.pid), 40_000_000))
    assert stage.job.pace.learned(stage.job.members.ranks)
    assert 4.5 < stage.job.pace.longest_s < 6
    assert not [verdict for verdict in stage.verdicts if verdict.kind.is_fault]
