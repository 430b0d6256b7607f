"""Which of a process's files may have NCCL, and that a file which was put in its place is not probed."""

from __future__ import annotations

import mmap
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcover_ebpf.collectives.nccl.mapped_libraries import (
    HOSTS,
    LIBRARIES,
    Libraries,
    NoLibrary,
    candidates,
)
from kcover_ebpf.ids import Pid
from tests.unit.support.elf_files import built

MAPS = """\
7f00-7f10 r--p 00000000 08:01 11 /usr/lib/libnccl.so.2.28.9
7f10-7f20 r-xp 00001000 08:01 11 /usr/lib/libnccl.so.2.28.9
7f20-7f30 r-xp 00001000 08:01 12 /usr/lib/libnccl-net.so
7f30-7f40 r-xp 00001000 08:01 13 /opt/my env/libtorch_cuda.so
7f40-7f50 r-xp 00001000 08:01 14 /opt/librccl.so.1 (deleted)
7f50-7f60 rw-p 00001000 08:01 15 /opt/libnccl.so.2
7f60-7f70 r-xp 00000000 00:00 0 [vdso]
7f70-7f80 r-xp 00000000 00:00 0
broken
"""


def test_candidates__libraries_are_found_among_the_mappings_of_code() -> None:
    found = candidates(MAPS.splitlines(keepends=True), LIBRARIES + HOSTS)
    assert [(mapped_file.inode, mapped_file.path) for mapped_file in found] == [
        (11, "/usr/lib/libnccl.so.2.28.9"),
        (13, "/opt/my env/libtorch_cuda.so"),
        (14, "/opt/librccl.so.1 (deleted)"),
    ]


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Path]:
    """A library that this process has mapped as code."""
    library = tmp_path / "libnccl.so.2"
    shutil.move(built(tmp_path), library)
    with library.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    yield library
    mapping.close()


ME = Pid(os.getpid())
FINDER_NAMES = ("ncclAllReduce", "ncclGather")


@pytest.mark.needs("gcc", "root")
def test_libraries__the_functions_of_a_process_are_found_in_its_own_files(ours: Path) -> None:
    with Libraries(FINDER_NAMES).of(ME) as found:
        assert found.name == "libnccl.so.2"
        assert list(found.offsets) == ["ncclAllReduce"]
        assert Path(found.path).stat().st_ino == ours.stat().st_ino
    assert not Path(found.path).exists()


@pytest.mark.needs("gcc", "root")
@pytest.mark.parametrize("replacement", ["file", "link", "fifo", "device", "nothing"])
def test_libraries__what_was_put_in_its_place_is_not_opened(ours: Path, replacement: str) -> None:
    mapped = ours.stat().st_ino
    aside = ours.with_name("aside")
    shutil.copy(ours, aside)
    ours.unlink()
    match replacement:
        case "file":
            shutil.copy(aside, ours)
        case "link":
            ours.symlink_to(aside)
        case "fifo":
            os.mkfifo(ours)
        case "device":
            os.mknod(ours, stat.S_IFCHR | 0o600, os.makedev(1, 7))
        case _:
            pass
    with Libraries(FINDER_NAMES).of(ME) as found:
        assert Path(found.path).stat().st_ino == mapped


@pytest.mark.needs("root")
def test_libraries__a_device_that_is_mapped_is_not_opened(tmp_path: Path) -> None:
    node = tmp_path / "libnccl.so.9"
    os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    file = os.open(node, os.O_RDONLY)
    mapping = mmap.mmap(file, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    os.close(file)
    with (
        pytest.raises(NoLibrary, match=r"libnccl\.so\.9: "),
        Libraries(FINDER_NAMES).of(ME),
    ):
        pass
    mapping.close()


def test_libraries__a_process_without_nccl_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/maps").write_text("7f10-7f20 r-xp 00001000 08:01 5 /lib/libc.so.6\n")
    monkeypatch.setattr("kcover_ebpf.host.procfs.PROC", tmp_path)
    for pid, reason in ((7, "has loaded no NCCL"), (8, "mappings are unreadable")):
        with pytest.raises(NoLibrary, match=reason), Libraries(FINDER_NAMES).of(Pid(pid)):
            pass
