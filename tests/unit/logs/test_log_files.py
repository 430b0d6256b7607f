"""Following a container's log on a real file system: rotation, restarts, truncation, and what must not be read."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from kcover_ebpf.logs import log_files
from kcover_ebpf.logs.log_files import KEPT_BYTES, MOST_BEHIND_BYTES, LogFiles, UnsafeLogError

POD = "ns_trainer-0_uid"
pytestmark = pytest.mark.needs("root")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of one container."""
    made = tmp_path / "pods" / POD / "main"
    made.mkdir(parents=True)
    return made


def follow(folder: Path, tail_bytes: int | None = None) -> LogFiles:
    return LogFiles(folder.parents[1], POD, "main", tail_bytes=tail_bytes)


def everything(files: LogFiles, most_bytes: int = 4096) -> list[tuple[int, bytes]]:
    """What can be read now, by start of the container."""
    found: list[tuple[int, bytes]] = []
    while (chunk := files.read(most_bytes)) is not None:
        if found and found[-1][0] == chunk.start:
            found[-1] = (chunk.start, found[-1][1] + chunk.data)
        else:
            found.append((chunk.start, chunk.data))
    return found


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_log_files__a_log_is_followed_as_it_grows(folder: Path) -> None:
    files, log = follow(folder), folder / "0.log"
    assert everything(files) == []
    append(log, b"one\n")
    assert everything(files) == [(0, b"one\n")]
    assert everything(files) == []
    append(log, b"two\n")
    assert everything(files) == [(0, b"two\n")]


def test_log_files__nothing_is_lost_by_a_rotation_as_the_kubelet_does_it(folder: Path) -> None:
    files, log = follow(folder), folder / "0.log"
    append(log, b"one\n")
    assert everything(files) == [(0, b"one\n")]
    append(log, b"two\n")
    rotated = folder / "0.log.20261122-100000"
    log.rename(rotated)
    assert everything(files) == [(0, b"two\n")]
    append(rotated, b"three\n")  # the runtime has not opened the new file yet
    append(log, b"four\n")
    assert everything(files) == [(0, b"three\nfour\n")]
    with gzip.open(folder / "0.log.20261122-100000.gz", "wb") as packed:
        packed.write(rotated.read_bytes())
    rotated.unlink()
    append(log, b"five\n")
    assert everything(files) == [(0, b"five\n")]


def test_log_files__many_rotations_within_one_tick_of_the_clock(folder: Path) -> None:
    files, log = follow(folder), folder / "0.log"
    read = b""
    for number in range(50):
        append(log, b"%d\n" % number)
        read += b"".join(data for _, data in everything(files))
        log.rename(folder / f"0.log.{number}")
        read += b"".join(data for _, data in everything(files))
    assert read == b"".join(b"%d\n" % number for number in range(50))


def test_log_files__the_log_of_a_start_is_read_to_its_end_before_that_of_the_next(
    folder: Path,
) -> None:
    files = follow(folder)
    append(folder / "0.log", b"one\n")
    assert everything(files) == [(0, b"one\n")]
    append(folder / "0.log", b"last words\n")
    append(folder / "1.log", b"again\n")
    append(folder / "2.log", b"and again\n")
    assert everything(files) == [(0, b"last words\n"), (1, b"again\n"), (2, b"and again\n")]


def test_log_files__the_first_bytes_of_a_start_are_marked(folder: Path) -> None:
    files = follow(folder, tail_bytes=KEPT_BYTES)
    append(folder / "0.log", b"one\n")
    first, second = files.read(2), files.read(100)
    assert first is not None
    assert second is not None
    assert (first.is_first, second.is_first) == (True, False)


def test_log_files__what_was_there_before_is_read_from_near_its_end(folder: Path) -> None:
    append(folder / "0.log", b"x" * 1000 + b"\nend\n")
    append(folder / "3.log", b"y" * 1000 + b"\nend\n")
    files = follow(folder, tail_bytes=10)
    chunk = files.read(4096)
    assert chunk is not None
    assert (chunk.start, chunk.data, chunk.is_first) == (3, b"yyyyy\nend\n", False)


def test_log_files__a_log_that_was_truncated_is_read_from_its_begin(folder: Path) -> None:
    files, log = follow(folder), folder / "0.log"
    append(log, b"a long line\n")
    assert everything(files) == [(0, b"a long line\n")]
    log.write_bytes(b"new\n")
    assert everything(files) == [(0, b"new\n")]


def test_log_files__what_is_written_too_fast_is_skipped_and_counted(folder: Path) -> None:
    files, log = follow(folder), folder / "0.log"
    append(log, b"one\n")
    assert everything(files) == [(0, b"one\n")]
    with log.open("r+b") as file:
        file.truncate(MOST_BEHIND_BYTES * 2)
    append(log, b"end\n")
    chunk = files.read(4096)
    assert chunk is not None
    assert chunk.skipped_bytes == MOST_BEHIND_BYTES * 2 + 4 - KEPT_BYTES - 4
    assert everything(files, 1 << 20)[-1][1].endswith(b"end\n")


def test_log_files__a_log_whose_pod_is_gone_is_read_to_its_end(folder: Path) -> None:
    files, log = follow(folder), folder / "0.log"
    append(log, b"one\n")
    assert everything(files) == [(0, b"one\n")]
    append(log, b"last words\n")
    log.unlink()
    folder.rmdir()
    assert everything(files) == [(0, b"last words\n")]


# --- what a pod with a hostPath volume on the folder of logs may put there


def symbolic(log: Path, secret: Path) -> None:
    log.symlink_to(secret)


def hard(log: Path, secret: Path) -> None:
    log.hardlink_to(secret)


def fifo(log: Path, _: Path) -> None:
    os.mkfifo(log)


def folder_instead(log: Path, _: Path) -> None:
    log.mkdir()


def of_another(log: Path, _: Path) -> None:
    log.write_bytes(b"mine\n")
    os.chown(log, 1000, 1000)


@pytest.mark.parametrize(
    "place", [symbolic, hard, fifo, folder_instead, of_another], ids=lambda item: item.__name__
)
def test_log_files__what_is_no_regular_file_of_root_is_not_read(
    folder: Path, tmp_path: Path, place
) -> None:
    secret = tmp_path / "shadow"
    secret.write_bytes(b"root:secret\n")
    place(folder / "0.log", secret)
    with pytest.raises(UnsafeLogError, match=r"0\.log"):
        follow(folder).read(4096)


def test_log_files__a_link_in_the_place_of_a_rotated_log_is_not_followed(
    folder: Path, tmp_path: Path
) -> None:
    files, log = follow(folder), folder / "0.log"
    append(log, b"one\n")
    assert everything(files) == [(0, b"one\n")]
    (tmp_path / "shadow").write_bytes(b"root:secret\n")
    log.unlink()
    log.symlink_to(tmp_path / "shadow")
    with pytest.raises(UnsafeLogError):
        files.read(4096)


@pytest.mark.parametrize("link", ["container", "pod"])
def test_log_files__a_folder_that_is_a_link_is_not_followed(tmp_path: Path, link: str) -> None:
    elsewhere = tmp_path / "elsewhere" / "main"
    elsewhere.mkdir(parents=True)
    (elsewhere / "0.log").write_bytes(b"secret\n")
    pod = tmp_path / "pods" / POD
    if link == "pod":
        pod.parent.mkdir()
        pod.symlink_to(elsewhere.parent)
    else:
        pod.mkdir(parents=True)
        (pod / "main").symlink_to(elsewhere)
    with pytest.raises(UnsafeLogError, match="link"):
        LogFiles(tmp_path / "pods", POD, "main", tail_bytes=None).read(4096)


@pytest.mark.parametrize("name", ["..", ".", "a/b"])
def test_log_files__a_name_that_leaves_the_folder_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(UnsafeLogError):
        LogFiles(folder.parents[1], POD, name, tail_bytes=None).read(4096)


def test_log_files__descriptors_are_given_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "MOST_BEHIND_BYTES", 1 << 20)
    before = len(list(Path("/proc/self/fd").iterdir()))
    files = follow(folder)
    for start in range(20):
        append(folder / f"{start}.log", b"x\n")
        assert everything(files) == [(start, b"x\n")]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2
    files.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
