"""The folder that NCCL Inspector writes to: found by a process's environment, read to its end, never led elsewhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from kcover_ebpf.collectives.inspector import folder
from kcover_ebpf.collectives.inspector.folder import InspectorRead
from kcover_ebpf.errors import CannotObserve
from kcover_ebpf.ids import Pid
from kcover_ebpf.tunables.collectives import MOST_TAIL_BYTES
from tests.unit.collectives.inspector.inspector_files import even, group, write


def read_by_process(cwd: Path, **environ: str) -> InspectorRead:
    """What is read of a process in this folder with this environment."""
    pipe = subprocess.PIPE
    with subprocess.Popen(["/bin/cat"], cwd=cwd, env=environ, stdin=pipe, stdout=pipe) as process:
        try:
            # it has its words and its environment once it answers, and not while it is being started
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()
            descriptor = folder.opened_by(Pid(process.pid))
            try:
                return folder.read(descriptor)
            finally:
                os.close(descriptor)
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("name", "environ"),
    [
        ("dump", {"NCCL_INSPECTOR_DUMP_DIR": "dump"}),
        ("nccl-inspector-12", {"SLURM_JOBID": "12"}),
        ("nccl-inspector-unknown-jobid", {}),
    ],
)
def test_opened_by__the_folder_is_the_one_that_the_plug_in_takes(
    tmp_path: Path, name: str, environ: dict[str, str]
) -> None:
    write(tmp_path / name, group("0xa", range(2), even))
    read = read_by_process(tmp_path, **environ)
    assert (read.file_count, len(read.runs), read.bad_count) == (2, 120, 0)


def test_opened_by__an_absolute_path_is_one_of_the_process(tmp_path: Path) -> None:
    made = write(tmp_path / "dump", group("0xa", range(2), even))
    assert len(read_by_process(tmp_path, NCCL_INSPECTOR_DUMP_DIR=str(made)).runs) == 120


@pytest.mark.parametrize("path", ["link", "file", "missing", "../dump"])
def test_opened_by__what_is_no_folder_of_its_own_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "cwd/dump").mkdir(parents=True)
    (tmp_path / "dump").mkdir()
    (tmp_path / "cwd/link").symlink_to(tmp_path / "dump")
    (tmp_path / "cwd/file").write_text("x")
    with pytest.raises(CannotObserve, match="no folder of NCCL Inspector"):
        read_by_process(tmp_path / "cwd", NCCL_INSPECTOR_DUMP_DIR=path)


def test_opened_by__a_process_that_is_gone_cannot_be_observed() -> None:
    with pytest.raises(CannotObserve, match="no process"):
        folder.opened_by(Pid(4_194_303))


def test_read__what_is_no_file_of_the_folder_is_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To open a device does things, and another file system may be the kernel's own."""
    made = write(tmp_path / "dump", group("0xa", range(2), even))
    os.mkfifo(made / "pipe.log")
    descriptor = os.open(made, os.O_RDONLY)
    opened: list[int] = []
    real = os.open

    def spy(path: str, flags: int, dir_fd: int | None = None) -> int:
        opened.append(flags & os.O_PATH)
        return real(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", spy)
    assert folder.read(descriptor).file_count == 2
    assert opened.count(0) == 2, "only the two files"
    device = os.fstat(descriptor).st_dev
    assert folder._opened(descriptor, "host-pid100.log", device + 1) is None
    os.close(descriptor)


def test_read__links_pipes_and_folders_are_passed_over(tmp_path: Path) -> None:
    made = write(tmp_path / "dump", group("0xa", range(2), even))
    (made / "link.log").symlink_to("/etc/passwd")
    os.mkfifo(made / "pipe.log")
    (made / "inner").mkdir()
    descriptor = os.open(made, os.O_RDONLY)
    read = folder.read(descriptor)
    os.close(descriptor)
    assert (read.file_count, len(read.runs)) == (2, 120)


def test_read__of_a_long_file_the_end_is_read_from_a_whole_line_on(tmp_path: Path) -> None:
    made = write(tmp_path / "dump", group("0xa", range(1), even, count=4000))
    (file,) = made.iterdir()
    assert file.stat().st_size > MOST_TAIL_BYTES
    descriptor = os.open(made, os.O_RDONLY)
    read = folder.read(descriptor)
    os.close(descriptor)
    assert read.bad_count == 0
    assert read.runs[-1].number == 3999
    assert 1000 < len(read.runs) < 4000
