"""File systems answer, are still writable, and write in good time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from kcover_ebpf.inspection.mounts import Mount, find_mounts
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown, warned
from kcover_ebpf.tunables.inspection import STORAGE_PATIENCE_S, STORAGE_SLOW_S

_FILE_BYTES = 1 << 20


def find(options: InspectionOptions) -> Iterator[CheckFinding]:
    """A finding for each file system, and one for the write."""
    mounts = find_mounts(options.root)
    seconds = _ask_all(mounts)
    for mount, taken_s in zip(mounts, seconds, strict=True):
        yield _of_one(mount, taken_s)
    if not mounts:
        yield unknown("no mounted disk or network file system is visible", "run on the node itself")
    if options.write_to is not None:
        yield _write(options.write_to)


def _of_one(mount: Mount, taken_s: float | None) -> CheckFinding:
    if taken_s is None:
        whose = "its server" if mount.is_network else "the disk"
        text = f"{mount.label}: no answer within {STORAGE_PATIENCE_S:g} s"
        return failed(text, f"check {whose} and the way to it; jobs that touch it are stuck")
    if mount.went_read_only:
        text = f"{mount.label}: became read-only after an error"
        return failed(text, "see dmesg for the error; repair the file system (fsck)")
    text = f"{mount.label}: answered in {taken_s * 1000:.1f} ms"
    if taken_s > STORAGE_SLOW_S:
        return warned(text, "check the load of the server or the disk")
    return passed(text)


def _ask_all(mounts: Sequence[Mount]) -> list[float | None]:
    """Seconds until statfs returned; None: not within the patience. All at once, each in a thread.

    A thread that hangs is left in this process, which the runner leaves behind.
    """
    taken: list[float | None] = [None] * len(mounts)

    def ask(index: int) -> None:
        start_s = time.monotonic()
        try:
            os.statvfs(mounts[index].path)
        except PermissionError:  # it answered
            pass
        except OSError:  # ESTALE, EIO, ENOTCONN: a file system that is gone gives no answer
            return
        taken[index] = time.monotonic() - start_s

    threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(len(mounts))]
    for each in threads:
        each.start()
    end_s = time.monotonic() + STORAGE_PATIENCE_S
    for each in threads:
        each.join(max(0.0, end_s - time.monotonic()))
    return taken


def _write(folder: Path) -> CheckFinding:
    import tempfile

    start_s = time.monotonic()
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".kcover-inspect-") as file:
            file.write(os.urandom(_FILE_BYTES))
            file.flush()
            os.fsync(file.fileno())
            synced_s = time.monotonic()
            # Read from the disk or server, and not from memory.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            file.read()
    except OSError as error:
        return failed(
            f"{folder}: cannot write: {error.strerror}", "check space, quota and permissions"
        )
    wrote_s, read_s = synced_s - start_s, time.monotonic() - synced_s
    text = f"{folder}: 1 MiB written in {wrote_s * 1000:.0f} ms, read in {read_s * 1000:.0f} ms"
    if max(wrote_s, read_s) > STORAGE_SLOW_S:
        return warned(text, "check the load of the server or the disk")
    return passed(text)


CHECK = Check(
    "storage",
    Cost.LIGHT,
    30.0,
    "each disk and network file system (with its server or CSI driver) answers statfs within 5 s (warn from "
    "1 s) and did not become read-only; 1 MiB is written, synced and read in the folder of `--write-to`",
    "`/proc/1/mountinfo`, statfs",
    find,
)
