"""Checks that file systems answer, are still writable, and write fast enough."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from kcover_ebpf.inspection.at_once import at_once
from kcover_ebpf.inspection.mounts import Mount, find_mounts
from kcover_ebpf.inspection.options import InspectionOptions
from kcover_ebpf.inspection.result import Check, CheckFinding, Cost, failed, passed, unknown, warned
from kcover_ebpf.tunables.inspection import (
    STORAGE_PATIENCE_S,
    STORAGE_SLOW_S,
    STORAGE_WRITE_PATIENCE_S,
)

_FILE_BYTES = 1 << 20


def find(options: InspectionOptions) -> Iterator[CheckFinding]:
    """A finding for each file system, and one for each folder that is tested by writing."""
    mounts = find_mounts(options.root)
    for mount, found in zip(mounts, at_once(_ask, mounts, STORAGE_PATIENCE_S), strict=True):
        late = f"no answer within {STORAGE_PATIENCE_S:g} s"
        findings = [_without_answer(mount, late)] if found is None else found
        yield from map(mount.judged, findings)
    if not mounts:
        yield unknown("no mounted disk or network file system is visible", "run on the node itself")
    yield from _write_all(options)


def _ask(mount: Mount) -> list[CheckFinding]:
    """The finding about a file system; none about one that is not in its place.

    All are asked in parallel, one thread each. A thread that hangs stays in this process, which the runner abandons
    in turn.
    """
    start_s = time.monotonic()
    try:
        os.statvfs(mount.path)
    except PermissionError:  # it answered
        pass
    except OSError as error:  # ESTALE, EIO, ENOTCONN: the file system is gone and cannot answer
        text = f"no answer: {error.strerror}"
        return [_without_answer(mount, text)] if mount.is_in_place() else []
    return [_answered(mount, time.monotonic() - start_s)]


def _without_answer(mount: Mount, text: str) -> CheckFinding:
    whose = "its server" if mount.is_network else "the disk"
    advice = f"check {whose} and the way to it; jobs that touch it are stuck"
    return failed(f"{mount.label}: {text}", advice)


def _answered(mount: Mount, taken_s: float) -> CheckFinding:
    if mount.went_read_only:
        text = f"{mount.label}: became read-only after an error"
        return failed(text, "see dmesg for the error; repair the file system (fsck)")
    text = f"{mount.label}: answered in {taken_s * 1000:.1f} ms"
    if taken_s > STORAGE_SLOW_S:
        return warned(text, "check the load of the server or the disk")
    return passed(text)


def _write_all(options: InspectionOptions) -> Iterator[CheckFinding]:
    def write(folder: Path) -> CheckFinding:
        return _write(folder, options.root)

    written = at_once(write, options.write_to, STORAGE_WRITE_PATIENCE_S)
    for folder, finding in zip(options.write_to, written, strict=True):
        text = f"{folder}: 1 MiB is not written and read within {STORAGE_WRITE_PATIENCE_S:g} s"
        yield finding or failed(text, "check its disk or server; jobs that write there are stuck")


def _passes_a_link(folder: Path, root: Path) -> bool:
    """Whether a host folder passes a link, which from a container would lead into the container's own files."""
    if root == Path("/") or not folder.is_relative_to(root):
        return False
    inside = folder.relative_to(root).parts
    return any(root.joinpath(*inside[: end + 1]).is_symlink() for end in range(len(inside)))


def _write(folder: Path, root: Path) -> CheckFinding:
    import tempfile

    try:
        if _passes_a_link(folder, root):
            return unknown(f"{folder}: is or passes a link", "give the path that it leads to")
        start_s = time.monotonic()
        # without a name, so that nothing is left if we are killed
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(os.urandom(_FILE_BYTES))
            file.flush()
            os.fsync(file.fileno())
            synced_s = time.monotonic()
            # read from the disk or server, not from memory
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            file.read()
    except (
        PermissionError,
        FileNotFoundError,
    ) as error:  # our own limitation, not a fault of the disk
        text = f"{folder}: cannot write: {error.strerror}"
        return unknown(text, "name a folder of the node that root may write to")
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
    "1 s) and did not become read-only (only a warning of a volume of pods); 1 MiB is written, synced and read within "
    "20 s (warn from 1 s each way) in each folder of `--write-to` (`writeTo` in the chart)",
    "`/proc/1/mountinfo`, statfs",
    find,
)
