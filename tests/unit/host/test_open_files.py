"""Which of some files processes have open: what a tenant decides on costs what it may, and no other its answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.host import open_files, over_bounds
from kcover_ebpf.host.open_files import OpenFiles
from kcover_ebpf.ids import Pid


def opens(proc: Path, pid: int, *targets: str) -> None:
    folder = proc / str(pid) / "fd"
    folder.mkdir(parents=True)
    for number, target in enumerate(targets):
        (folder / str(number)).symlink_to(target)


def test_read__of_each_process_what_it_has_open(tmp_path: Path) -> None:
    opens(tmp_path, 1, "/dev/nvidia0", "/dev/nvidia1", "/dev/null")
    opens(tmp_path, 2, "/dev/null")
    wanted = ["/dev/nvidia0", "/dev/nvidia1"]
    found = open_files.read([Pid(1), Pid(2), Pid(99)], wanted, tmp_path)
    assert found == {1: frozenset(wanted), 2: frozenset(), 99: frozenset()}
    files = OpenFiles(tmp_path)
    assert files.holders([Pid(1), Pid(2), Pid(99)], {"/dev/nvidia1"}) == {1}
    assert files.of([Pid(1)], ()) == {}


def test_read__one_with_very_many_descriptors_comes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the time of all, those with few are read whole; what was not reached is not known."""
    held = {"1": ["/a"] * 600 + ["/dev/nvidia0"], "2": ["/dev/nvidia0"]}

    def links(folder: Path, most: int) -> tuple[Iterator[str], bool]:
        found = held[folder.parent.name]
        return iter(found[:most]), len(found) > most

    monkeypatch.setattr("kcover_ebpf.host.open_files.bounded.links", links)
    clock = iter(range(100))
    monkeypatch.setattr("kcover_ebpf.host.open_files.time.thread_time", lambda: next(clock))
    monkeypatch.setattr(open_files, "OPEN_FILES_CPU_S", 2.5)
    found = open_files.read([Pid(1), Pid(2)], {"/dev/nvidia0"}, tmp_path)
    assert found[Pid(2)] == {"/dev/nvidia0"}
    assert found[Pid(1)] == frozenset(), "of its first 512 none is one"
    monkeypatch.setattr(open_files, "OPEN_FILES_CPU_S", 1000)
    found = open_files.read([Pid(1), Pid(2)], {"/dev/nvidia0"}, tmp_path)
    assert found[Pid(1)] == {"/dev/nvidia0"}
    monkeypatch.setattr(open_files, "OPEN_FILES_CPU_S", 0)
    assert open_files.read([Pid(1), Pid(2)], {"/dev/nvidia0"}, tmp_path) == {}


def test_read__of_too_many_descriptors_the_first_are_read_and_it_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens(tmp_path, 1, *["/a"] * 40)
    monkeypatch.setattr(open_files, "_MOST_LINKS", (10, 20))
    before = over_bounds.counts()["descriptors"]
    assert open_files.read([Pid(1)], {"/b"}, tmp_path) == {1: frozenset()}
    assert over_bounds.counts()["descriptors"] == before + 1


def test_open_files__who_reads_can_be_another(tmp_path: Path) -> None:
    files = OpenFiles(tmp_path)
    here = Pid(os.getpid())
    assert files.holders([here], {"/x"}) == set()
    files.read_by(lambda pids, paths: {pid: frozenset(paths) for pid in pids})
    assert files.holders([here], {"/x"}) == {here}
